"""Candidates for the arithmetic of a dump: an accumulator and the order of operations around it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...cast.casts import encode
from ...format.catalogue import Format
from ...tensorcore.accumulator import FLOAT32, FLOAT64, TF32, Accumulator, heeded_fields
from ...tensorcore.catalogue import accumulators
from ...tensorcore.engines import reference
from ...tensorcore.engines.chain import sequential_f64
from ...tensorcore.engines.selection import plan_for, solve, solve_promoted
from ...tensorcore.gemm import gemm
from ...tensorcore.library import GemmLibrary, gemm_libraries
from ...tensorcore.operands import instruction_codes
from ...tensorcore.problem import GemmProblem, Joins, promoted_chains
from .dump import GemmDump, Part, canonical

Array = NDArray[Any]
_FEW = 1 << 14  # number of products up to which the overhead of a call dominates


class Candidate(ABC):
    """Arithmetic that may have computed a dump, as `lowprec.mma` or `lowprec.gemm` does.

    Attributes
    ----------
    accumulator : Accumulator
        Rule that sums the products.
    library : GemmLibrary or None
        Order of operations around the chains; None: one chain that starts from C.
    """

    accumulator: Accumulator
    library: GemmLibrary | None

    def __str__(self) -> str:
        """Name the accumulator, and the library around it."""
        if self.library is None:
            return f"{self.accumulator}"
        return f"{self.accumulator} within {_known_name(self.library) or _fields_of(self.library)}"

    @property
    @abstractmethod
    def promote_every(self) -> int | None:
        """Products between two promotions to float32."""

    @abstractmethod
    def outputs(self, part: Part) -> Array:
        """Return the bits of a part's outputs.

        Raises
        ------
        ValueError, TypeError
            If the accumulator does not take these operands or return this output format.
        """

    @abstractmethod
    def changed(self, **changes: Any) -> Candidate | None:
        """Return a candidate with changed fields, ignoring those that its kind lacks; None if they are incompatible."""

    @abstractmethod
    def line(self, dump: GemmDump) -> str:
        """Return the call that gives a dump's outputs, as a line of Python."""

    def value_of(self, name: str) -> Any:
        """Return the value of a field that `changed` sets."""
        return self.promote_every if name == "promote_every" else getattr(self.accumulator, name)

    def within(self, order: GemmLibrary | None) -> Candidate | None:
        """Return this accumulator in another order of operations, with the same promotion; None if they do not fit."""
        plain = self.changed(promote_every=None) if self.library is None else self
        assert plain is not None
        if order is None:
            return MmaCandidate(plain.accumulator).changed(promote_every=self.promote_every)
        return GemmCandidate(plain.accumulator, replace(order, promote_every=self.promote_every))

    def differing(self, part: Part) -> NDArray[np.bool_]:
        """Return a mask of the outputs of a part that differ from the candidate's."""
        found: NDArray[np.bool_] = self.outputs(part) != part.wanted
        return found

    def key(self) -> tuple[Any, ...]:
        """Return the fields that determine the bits; candidates with equal keys are the same arithmetic."""
        m = self.accumulator
        fields = tuple((name, getattr(m, name)) for name in heeded_fields(type(m)))
        return type(m), fields, m.accepts(TF32), self.library

    def applies(self, part: Part) -> bool:
        """Return whether the candidate takes a part's operands and returns its output format."""
        try:
            self.outputs(part)
        except (ValueError, TypeError):
            return False
        return True

    def nearest(self, dump: GemmDump) -> tuple[Accumulator, dict[str, Any]]:
        """Return the catalogue's accumulator for these operands that differs in the fewest fields, and these fields."""
        machine, found = self.accumulator, []
        for name in accumulators:
            other = accumulators[name]
            if type(other) is not type(machine):  # every kind is in the catalogue
                continue
            heeded = heeded_fields(type(machine))
            changes = {n: getattr(machine, n) for n in heeded if getattr(machine, n) != getattr(other, n)}
            if machine.accepts(TF32) != other.accepts(TF32):
                changes["input_formats"] = machine.input_formats
            elif not takes(other, dump):
                changes["input_formats"] = ()
            found.append((other, changes))
        return min(found, key=lambda x: len(x[1]))

    def known(self, dump: GemmDump) -> Candidate:
        """Return the same arithmetic with objects of the catalogue, or as a change of an entry."""
        base, changes = self.nearest(dump)
        machine = base.with_(**changes) if changes else base
        name = None if self.library is None else _known_name(self.library)
        return candidate_of(machine, self.library if name is None else gemm_libraries[name])

    def accumulator_line(self, dump: GemmDump) -> str:
        """Return a Python expression of the accumulator: the nearest entry, and the fields that differ from it."""
        base, changes = self.nearest(dump)
        text = f'lp.accumulators["{base.name}"]'
        return text + (f".with_({', '.join(f'{k}={as_python(v)}' for k, v in changes.items())})" if changes else "")


@dataclass(frozen=True)
class MmaCandidate(Candidate):
    """An accumulator as `lowprec.mma` computes it: one chain that starts from C."""

    accumulator: Accumulator
    library: None = field(default=None, init=False)

    @property
    def promote_every(self) -> int | None:
        """The accumulator's interval."""
        return self.accumulator.promote_every

    def outputs(self, part: Part) -> Array:
        """Return the bits of a part's outputs."""
        m, out, stored = self.accumulator, part.out, self.accumulator.stored_format
        if stored != out:
            raise TypeError(f"{m} gives {stored.name}")
        if (FLOAT64 in (part.fa, part.fb)) != (stored == FLOAT64):
            raise TypeError(f"{m} multiplies other formats")
        start = np.zeros((len(part.a), len(part.b)), m.dtype) if part.c is None else part.c.astype(m.dtype)
        if part.c is not None and m.dtype != np.float32 and part.c.dtype != start.dtype:
            raise TypeError(f"{m} adds to {m.dtype}")
        if stored == FLOAT64:
            return canonical(part.pick(sequential_f64(part.a, part.b, start)).view(np.uint64), out)
        if (m.scale_format is None) != (part.scales is None):
            raise ValueError(f"{m} takes {'no ' if m.scale_format is None else ''}scales")
        if part.scales is not None and part.scales.a.shape[1] * m.scale_block != part.a.shape[1]:
            raise ValueError(f"{m} takes scales for {m.scale_block}")
        m.check_inputs(part.fa, part.fb)
        (x, left), (y, right) = instruction_codes(part.a, part.fa, m), instruction_codes(part.b, part.fb, m)
        p = GemmProblem(x, y, left, right, start, *(part.scales or ()))
        d = part.pick(_multiplied(m, (part.fa, part.fb), p, part.c is None))
        return d.view(part.wanted.dtype)

    def changed(self, **changes: Any) -> Candidate | None:
        """Return a candidate with other fields of the accumulator."""
        machine = _replaced(self.accumulator, changes)
        return None if machine is None else MmaCandidate(machine)

    def line(self, dump: GemmDump) -> str:
        """Return the call of `lowprec.mma`."""
        given = ["a", "b"] + (["c"] if dump.c is not None else []) + [f"accumulator={self.accumulator_line(dump)}"]
        if dump.fa != FLOAT64:
            given += [f'a_format="{dump.fa.name}"', f'b_format="{dump.fb.name}"']
        if dump.scales is not None:
            given += ["a_scale=a_scale", "b_scale=b_scale"]
        return f"lp.mma({', '.join(given)})"


@dataclass(frozen=True)
class GemmCandidate(Candidate):
    """An accumulator with the order of operations around it that `lowprec.gemm` follows."""

    accumulator: Accumulator
    library: GemmLibrary

    @property
    def promote_every(self) -> int | None:
        """The library's interval."""
        return self.library.promote_every

    def outputs(self, part: Part) -> Array:
        """Return the bits of a part's outputs."""
        m, out = self.accumulator, part.out
        if part.quantized is None:
            raise ValueError(f"{self.library} takes scales as numbers")
        own = m.promote_every is not None or m.scale_format is not None
        every = m.promote_every if own else self.library.promote_every  # as it is: not fitted to scales and groups
        x = gemm(*part.quantized, part.c, accumulator=m, promote_every=every, library=self.library, out_format=out)
        return canonical(part.pick(encode(x, out, overflow="nonsaturate")), out)

    def changed(self, **changes: Any) -> Candidate | None:
        """Return a candidate with other fields of the accumulator and another interval of the library."""
        library = self.library
        if "promote_every" in heeded_fields(type(self.accumulator)) and "promote_every" in changes:
            library = replace(library, promote_every=changes["promote_every"])
        machine = _replaced(self.accumulator, {k: v for k, v in changes.items() if k != "promote_every"})
        return None if machine is None else GemmCandidate(machine, library)

    def line(self, dump: GemmDump) -> str:
        """Return the call of `lowprec.gemm`."""
        sides = zip("ab", (dump.fa.name, dump.fb.name), dump.blocks or ("tensor", "tensor"), strict=True)
        given = [
            f'lp.Quantized({x}, {f"{x}_scale" if dump.scaled else "np.ones((1, 1), np.float32)"}, "{fmt}", "{block}")'
            for x, fmt, block in sides
        ] + (["c"] if dump.c is not None else [])
        given += [f"accumulator={self.accumulator_line(dump)}", f"library={library_line(self.library)}"]
        given += [] if dump.out == FLOAT32 else [f'out_format="{dump.out.name}"']
        return f"lp.gemm({', '.join(given)})"


def candidate_of(machine: Accumulator, library: GemmLibrary | None) -> Candidate:
    """Return an accumulator within a library, or alone."""
    return MmaCandidate(machine) if library is None else GemmCandidate(machine, library)


def _replaced(machine: Accumulator, changes: dict[str, Any]) -> Accumulator | None:
    """Return an accumulator with other fields, ignoring those that its kind lacks; None if they are invalid."""
    known = ("input_formats", *heeded_fields(type(machine)))
    try:
        return replace(machine, **{name: value for name, value in changes.items() if name in known})
    except ValueError:
        return None


def _multiplied(m: Accumulator, pair: tuple[Format, Format], p: GemmProblem, from_zero: bool) -> Array:
    """Return the result of `lowprec.mma` for operands of some formats, by the fastest way for its size."""
    every, (rows, columns, k) = m.promote_every, p.shape
    if m.reference_is_compiled and rows * columns * k <= _FEW:
        m.check_formats(p.fa, p.fb)
        if every is None or (every >= k and from_zero and m.has_canonical_nan):
            return m.reference(p)
        return reference.solve_promoted(m, p, every, m.reference)
    way = plan_for(m, *pair)
    if every is None:
        return solve(way, p)
    if not from_zero or m.dtype != np.float32 or m.scale_format is not None or every % way.step:
        return solve_promoted(way, p, every)
    return solve(way, p._replace(c=None, joins=Joins(promoted_chains(k, every))))  # all chains in one call


def as_python(value: Any) -> str:
    """Return the Python expression of a field's value; formats by their names."""
    if isinstance(value, Format):
        return repr(value.name)
    return repr(tuple(f.name if isinstance(f, Format) else f for f in value) if isinstance(value, tuple) else value)


def library_line(library: GemmLibrary) -> str:
    """Return a Python expression of a library: its name if the catalogue has it, else its fields."""
    name = _known_name(library)
    return f'"{name}"' if name else f'lp.GemmLibrary("{library.name}", {_fields_of(library)[1:-1]})'


def _fields_of(library: GemmLibrary) -> str:
    """Return the fields in which a library differs from the plainest."""
    plain = GemmLibrary(library.name)
    names = [f.name for f in fields(library) if f.compare and getattr(library, f.name) != getattr(plain, f.name)]
    return f"({', '.join(f'{name}={getattr(library, name)!r}' for name in names)})"


def _known_name(library: GemmLibrary) -> str | None:
    """Return the catalogue's name for an order of operations, the library's own first; None for an unknown order."""
    names = sorted(
        (name for name in gemm_libraries if gemm_libraries[name] == library), key=lambda n: n != library.name
    )
    return names[0] if names else None


def takes(machine: Accumulator, dump: GemmDump) -> bool:
    """Return whether an accumulator multiplies a dump's formats."""
    if FLOAT64 in (dump.fa, dump.fb):
        return machine.dtype == np.float64
    return not machine.input_formats or all(map(machine.accepts, (dump.fa, dump.fb)))
