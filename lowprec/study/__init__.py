"""Ablations: descriptions, the protocol that runs them, statistics, figures and reports.

`__init__.pyi` lists the names for files of `ablations/`. They are loaded on first use, so that listing ablations does
not import the statistics.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
