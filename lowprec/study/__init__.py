"""Ablations: their description, the protocol that runs them, statistics, figures and reports.

The names that a file of `ablations/` uses stand in ``__init__.pyi``, each once; they are loaded when they are first
used, since listing ablations must not wait for the statistics.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
