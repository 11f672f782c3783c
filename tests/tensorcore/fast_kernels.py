"""The kernels of this CPU beside the reference: all bits, NaN and the signs of zeros too."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from floats import bits
from numpy.typing import NDArray

import lowprec as lp
from lowprec.tensorcore.accumulator import Accumulator
from lowprec.tensorcore.engines.engine import Engine
from lowprec.tensorcore.engines.selection import instruction_sets, kernel_in_use, plan_for, solve
from lowprec.tensorcore.problem import GemmProblem

#: Names of the kernels that this CPU can run, the fastest first.
KERNELS = instruction_sets("auto")


def agree(compute: Callable[[], NDArray[Any]], *label: Any, kernels: Sequence[str] = KERNELS) -> NDArray[Any]:
    """Ask that kernels of this CPU give the reference's bits, and return the reference's result."""
    with lp.use_kernel("reference"):
        want = compute().copy()
    for kernel in kernels:
        with lp.use_kernel(kernel):
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
    engine: type[Engine] | None = None,
    used: type = object,
    kernels: Sequence[str] = KERNELS,
) -> NDArray[Any]:
    """Compare one chain on every kernel with the reference, and return the reference's result.

    `scales` are inside the instruction. `engine` is the class to take where another might be chosen; `used` is the
    class that must be chosen.
    """
    c = np.zeros((len(a), len(b)), unit.dtype) if c is None else c
    p = GemmProblem(a, b, *formats, c, *(scales or ()))

    def compute() -> NDArray[Any]:
        name, way = kernel_in_use(), plan_for(unit, *formats)
        if engine is not None and name != "reference":
            found = (engine.find(unit, *formats, machine) for machine in instruction_sets(name))
            way = way._replace(engine=next(x for x in found if x is not None))
        assert name == "reference" or isinstance(way.engine, used)
        return solve(way, p)

    with np.errstate(invalid="ignore"):  # signalling NaNs
        return agree(compute, unit, *formats, kernels=kernels)


def codes_of(x: Any, fmt: lp.Format | str) -> NDArray[Any]:
    """Return codes of numbers, those beyond the format's as IEEE 754 has them."""
    return lp.encode(np.asarray(x, np.float64), fmt, policy="ocp_nonsat")
