"""Descriptions of studies: arms, sizes, stress, expectations and published claims, sources."""

from . import sources

__all__ = ["sources"]
