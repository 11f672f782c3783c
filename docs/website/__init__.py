"""What the site has beside the pages in docs/: pages from the catalogues, and pages that stand elsewhere."""

from __future__ import annotations

from .links import links
from .pages import write_pages

__all__ = ["links", "write_pages"]
