"""Exact recipes in functions of JAX: `linear` and `dot_general`, under jit, grad, vmap and scan.

The bits are those of the recipe's multiplications in NumPy, which run outside of XLA. A function is pure: stochastic
rounding takes the step as an argument, and delayed scaling, which has state, is refused. `report` lists the products of
a function, including those that XLA computes.
"""

try:
    import jax  # noqa: F401
except ImportError:
    raise ImportError("lowprec.jax needs JAX: pip install 'lowprec[jax]'") from None

from .attention import attention
from .products import dot_general, linear
from .qwix import QwixProvider
from .report import ProductRow, Report, report

__all__ = ["ProductRow", "QwixProvider", "Report", "attention", "dot_general", "linear", "report"]
