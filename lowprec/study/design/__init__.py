"""Descriptions of studies: arms, sizes, expectations, published claims, and their sources."""

from . import sources

__all__ = ["sources"]
