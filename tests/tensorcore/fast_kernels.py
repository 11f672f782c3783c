"""The kernels of this CPU beside the reference: all bits, NaN and the signs of zeros too."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import lowprec as lp
from lowprec import _jit
from lowprec.tensorcore.accumulator import Accumulator
from lowprec.tensorcore.chains import Chains, chains_of
from lowprec.tensorcore.fused_kernels import fused_kernels
from lowprec.tensorcore.kinds.panels import Float64Lanes
from lowprec.tensorcore.product import BlockScales, Product

#: Names of the fused kernels that this CPU can run.
KERNELS = [name for name in fused_kernels if fused_kernels[name].features <= _jit.cpu_features()]


def bits(x: NDArray[Any]) -> NDArray[Any]:
    """Return the bits of floats as unsigned integers."""
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")


def agree(compute: Callable[[], NDArray[Any]], *label: Any, kernels: Sequence[str] = KERNELS) -> NDArray[Any]:
    """Ask that kernels of this CPU give the reference's bits, and return the reference's result."""
    with lp.using(kernel="reference"):
        want = compute().copy()
    for kernel in kernels:
        with lp.using(kernel=kernel):
            got = compute()
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        if len(wrong := np.argwhere(bits(got) != bits(want))):
            at = tuple(wrong[0].tolist())
            first = f"{at}: {bits(got)[at]:#x}, reference {bits(want)[at]:#x}"
            raise AssertionError(f"{kernel}: {len(wrong)} of {got.size} outputs, first {first}; {label}")
    return want


def check_kernels(
    unit: Accumulator,
    formats: tuple[lp.Format, lp.Format],
    a: NDArray[Any],
    b: NDArray[Any],
    c: NDArray[Any] | None = None,
    scales: tuple[NDArray[Any], NDArray[Any]] | None = None,
    lanes: Callable[[str], Any] | None = None,
    used: type = object,
    kernels: Sequence[str] = KERNELS,
) -> NDArray[Any]:
    """Compare one chain on every kernel with the reference, and return what it is.

    `scales` are inside the instruction. `lanes` returns the kernel in float64 lanes that is meant by a name, where
    another might be chosen; `used` is the class of what must be chosen.
    """
    c = np.zeros((len(a), len(b)), unit.dtype) if c is None else c
    product = Product(*formats, a, b, c, scales and BlockScales(*scales))

    def compute() -> NDArray[Any]:
        name = lp.get_fused_kernel()
        chains = Chains(unit, Float64Lanes(unit, lanes(name))) if lanes and name != "reference" else None
        chains = chains or chains_of(unit, *formats)
        assert name == "reference" or isinstance(chains.kernel, used)
        return chains.compute(product)

    with np.errstate(invalid="ignore"):  # signalling NaNs
        return agree(compute, unit, *formats, kernels=kernels)


def codes_of(x: Any, fmt: lp.Format | str) -> NDArray[Any]:
    """Return codes of numbers, those beyond the format's as IEEE 754 has them."""
    return lp.encode(np.asarray(x, np.float64), fmt, policy="ocp_nonsat")
