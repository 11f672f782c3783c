"""lowprec: low-precision training numerics on a CPU, bit for bit.

`__init__.pyi` lists every public name once. Names are loaded on first use: ``import lowprec`` imports neither Numba nor
pandas.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]
