"""Generated pages of the site: from the catalogues, and from pages of the repository outside of docs/."""

from __future__ import annotations

from .links import links
from .pages import write_pages

__all__ = ["links", "write_pages"]
