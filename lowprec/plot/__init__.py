"""Pictures of numerics as matplotlib axes: errors of formats, value grids, running sums, losses.

The public names stand in ``__init__.pyi``; loaded when they are first used: reports need the style alone.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
