"""Descriptions of studies: arms, sizes, expectations and published claims, sources."""

from . import sources

__all__ = ["sources"]
