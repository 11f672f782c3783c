"""Configuration of Sphinx: ``python -m sphinx -W -b html docs build/site``, with the extra ``docs`` installed.

Pages in this folder are read in place. `website` generates the others from the catalogues, and from pages elsewhere in
the repository, into ``docs/generated`` at every build; they are not committed.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import website  # noqa: E402

import lowprec  # noqa: E402

project = "lowprec"
author = "the lowprec authors"
copyright = "the lowprec authors, Apache-2.0"
version = release = lowprec.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx_click",
    "sphinx_gallery.gen_gallery",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = [
    "gallery", "examples", "accumulators.md", "tutorials/*.py", "tutorials/*.ipynb", "tutorials/*.zip",
    "**/sg_execution*",
]  # fmt: skip
default_role = "py:obj"
nitpicky = False
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline", "deflist"]
suppress_warnings = ["config.cache"]  # the gallery's settings contain a function

numpydoc_show_class_members = False
numpydoc_xref_param_type = False
autodoc_typehints = "none"
autodoc_member_order = "bysource"

sphinx_gallery_conf: dict[str, Any] = {
    "examples_dirs": "gallery",
    "gallery_dirs": "tutorials",
    "filename_pattern": "/plot_"
    if find_spec("torch")
    else "/plot_(?!torch)",  # without torch, the script is shown but not run
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_signature": False,
    "remove_config_comments": True,
    "capture_repr": ("_repr_html_", "__repr__"),
    "matplotlib_animations": False,
    "plot_gallery": "True",
    "abort_on_example_error": True,
}

html_theme = "pydata_sphinx_theme"
html_title = "lowprec"
html_show_sourcelink = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme_options: dict[str, Any] = {
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_prev_next": True,
}
html_sidebars = {"index": []}


def setup(app: Any) -> None:
    """Generate pages before Sphinx looks for them, and adapt links between files."""
    website.write_pages()
    app.connect("source-read", _links)


def _links(app: Any, name: str, source: list[str]) -> None:
    """Adapt the links of a page that is read in place to the site."""
    if not name.startswith(("generated/", "tutorials/")):
        source[0] = website.links(source[0], f"docs/{name}.md")
