"""Pictures of numerics as matplotlib axes: errors of formats, value grids, running sums, losses.

`__init__.pyi` lists the public names, which are loaded on first use: reports need only the style.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
