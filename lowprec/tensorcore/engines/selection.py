"""Choice of the engine for a product, and `solve`, which leaves cases outside the engine's limits to the reference.

The accumulator and both formats determine the engine: the first of the accumulator's `engines` that is exact for them
on an enabled instruction set. All engines give the same bits.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from contextvars import ContextVar
from typing import NamedTuple

import numpy as np

from ... import _jit
from ...format.catalogue import Format
from ..accumulator import Accumulator
from ..problem import GemmProblem, Matrix
from . import reference
from .engine import Engine, Packed

#: Instruction sets, the fastest first, with the CPU features that they require (LLVM's names).
INSTRUCTION_SETS: dict[str, frozenset[str]] = {
    "avx512": frozenset({"avx512f", "avx512bw", "avx512vl", "avx512vpopcntdq"}),
    "fma": frozenset({"avx2", "fma"}),
    "portable": frozenset(),
}
AUTO, REFERENCE = "auto", "reference"

_selected: ContextVar[str | None] = ContextVar("lowprec kernel", default=None)


@contextlib.contextmanager
def use_kernel(name: str) -> Iterator[None]:
    """Select the kernels that compute matrix products within a ``with`` block; the bits do not change.

    The choice applies to the current thread (or asyncio task), regardless of the number of threads that it uses; other
    threads keep theirs. Outside all blocks the environment variable LOWPREC_KERNEL applies, by default ``auto``.

    Parameters
    ----------
    name : {"auto", "reference", "avx512", "fma", "portable"}
        ``auto`` uses the fastest instructions that this CPU has and that pass a comparison with the reference.
        ``reference`` computes each accumulator by its definition, in integers, and is about a hundred times slower.

    Raises
    ------
    ValueError
        If the name is unknown, or this CPU cannot run the kernel.

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> q = lp.quantize(np.ones((1, 128), np.float32), "e4m3fn 1x128")
    >>> with lp.use_kernel("reference"):
    ...     want = lp.gemm(q, q)
    >>> bool((lp.gemm(q, q) == want).all())
    True
    """
    before = _selected.set(_checked("use_kernel: name", name))
    try:
        yield
    finally:
        _selected.reset(before)


def kernel_in_use() -> str:
    """Return the name of the kernel selection in use, see `use_kernel`."""
    return _selected.get() or _default()


def instruction_sets(name: str) -> tuple[str, ...]:
    """Return the instruction sets that a selection allows, in order of preference."""
    if name == REFERENCE:
        return ()
    if name == AUTO:
        return tuple(machine for machine in INSTRUCTION_SETS if INSTRUCTION_SETS[machine] <= _features())
    return (name,) if name == "portable" else (name, "portable")


@functools.cache
def _features() -> frozenset[str]:
    return frozenset(_jit.cpu_features())  # takes longer than a small product


@functools.cache
def _default() -> str:
    return _checked("LOWPREC_KERNEL", os.environ.get("LOWPREC_KERNEL") or AUTO)


def _checked(what: str, name: str) -> str:
    if name in (AUTO, REFERENCE):
        return name
    if name not in INSTRUCTION_SETS:
        raise ValueError(f"{what} must be one of {', '.join((AUTO, REFERENCE, *INSTRUCTION_SETS))}, got {name!r}")
    if missing := INSTRUCTION_SETS[name] - _features():
        raise ValueError(
            f"{what} must be one of {', '.join((AUTO, REFERENCE))} here, got {name!r}: this CPU lacks "
            f"{', '.join(sorted(missing))}"
        )
    return name


class ProductPlan(NamedTuple):
    """Plan for all products of two formats on an accumulator."""

    accumulator: Accumulator
    fa: Format  # formats in which the operands are multiplied, such as TF32 for float32
    fb: Format
    engine: Engine | None  # None: only the reference computes the products
    step: int  # products per instruction


#: Cache by accumulator, formats and kernel; each entry keeps alive the formats whose ids are in its key.
plans: dict[tuple[int, int, int, str], tuple[ProductPlan, Format, Format]] = {}
_MAX_PLANS = 256


def plan_for(accumulator: Accumulator, fa: Format, fb: Format) -> ProductPlan:
    """Return the plan for an accumulator and two formats with the selected kernels.

    Raises
    ------
    ValueError
        If the accumulator does not support the formats.
    """
    key = id(accumulator), id(fa), id(fb), _selected.get() or _default()
    found = plans.get(key)
    if found is not None:
        return found[0]
    accumulator.check_inputs(fa, fb)
    left, right = accumulator.multiplied(fa), accumulator.multiplied(fb)
    accumulator.check_formats(left, right)
    way = ProductPlan(accumulator, left, right, engine_for(accumulator, left, right, key[3]), accumulator.step())
    if len(plans) >= _MAX_PLANS:
        plans.clear()
    plans[key] = way, fa, fb
    return way


def engine_for(accumulator: Accumulator, fa: Format, fb: Format, kernel: str = AUTO) -> Engine | None:
    """Return the fastest engine that is exact for the formats that are multiplied, or None if only the reference is."""
    for kind in accumulator.engines:
        for machine in instruction_sets(kernel):
            engine: Engine | None = kind.find(accumulator, fa, fb, machine)
            if engine is not None and (engine.trial is None or machine == "portable" or _has_passed_trial(engine)):
                return engine
    return None


_proofs: dict[tuple[type[Engine], str, str], bool] = {}


def _has_passed_trial(engine: Engine) -> bool:
    key = type(engine), engine.machine, engine.accumulator.align
    if key not in _proofs:
        _proofs[key] = passes_trial(engine)
    return _proofs[key]


def passes_trial(engine: Engine) -> bool:
    """Return whether an engine's machine code equals the reference on its trial: random finite codes, C and scales.

    The comparison takes some milliseconds and protects against compilers and CPUs that violate the code's assumptions.
    A thread left in another rounding mode also fails it.
    """
    engine = engine.on_trial()
    accumulator, rng = engine.accumulator, np.random.Generator(np.random.Philox(2024))
    m, n, k = 8, 70, 192
    codes, scales = [], []
    for fmt, rows in ((engine.fa, m), (engine.fb, n)):
        some = rng.integers(0, fmt.max_code, (rows, k), endpoint=True) | rng.integers(0, 2, (rows, k)) * fmt.sign_mask
        codes.append(np.where(rng.random((rows, k)) < 0.2, 0, some).astype(fmt.code_dtype))
        blocks = k // accumulator.scale_block if accumulator.scale_format is not None else 0
        scales.append(rng.integers(0, 0x7F, (rows, blocks), dtype=np.uint8) if blocks else None)
    c = np.ldexp(rng.standard_normal((m, n)), rng.integers(-20, 20, (m, n))).astype(accumulator.dtype)
    c[m // 2 :] = 0
    p = GemmProblem(codes[0], codes[1], engine.fa, engine.fb, c, scales[0], scales[1])
    got, want = engine.run(p).out, reference.solve(accumulator, p)
    to_nearest = np.float32(1) + np.float32(2.0**-24 * 1.5) == np.float32(1 + 2.0**-23)
    return bool(to_nearest) and got.tobytes() == want.tobytes()


def solve(way: ProductPlan, p: GemmProblem, packed: Packed | None = None) -> Matrix:
    """Compute a product: a chain in the accumulator's dtype, or a scaled sum of chains in float32."""
    engine, accumulator = way.engine, way.accumulator
    # Without products there is no group to loop over, but a group of zeros may change C: the reference decides.
    if engine is None or not p.a.shape[1]:
        return reference.solve(accumulator, p)
    if p.joins is not None and not (engine.whole and p.joins.fits_kernels):
        return reference.solve_joined(accumulator, p, p.joins, functools.partial(solve, way))
    parts = packed.parts if packed is not None and packed.engine == engine else None
    out, rows, columns = engine.run(p, parts)
    if rows.size:
        out[rows] = reference.solve(accumulator, p.rows(rows))
    if columns.size:
        out[:, columns] = reference.solve(accumulator, p.columns(columns))
    return out


def solve_promoted(way: ProductPlan, p: GemmProblem, every: int) -> Matrix:
    """Add C and chains of `every` products, each from +0, in float32; return the sum in the accumulator's dtype."""
    return reference.solve_promoted(way.accumulator, p, every, functools.partial(solve, way))
