"""The innermost step of the mxf4 and mxf4nvf4 kernels: a chain of groups for 4 rows x 32 columns.

One group is several runs of 16 products and C (GST-FDPA of arXiv:2511.10909). A run's products are summed exactly and
unscaled; the sum times both scales is one term, with exponent e equal to that of the scales, unnormalized. Terms and C
are aligned to the largest exponent E, truncated toward zero to a multiple of q = 2^(E - F), summed exactly, and the
result is truncated to the accumulator's format.

* Elements are integers a and b up to 12 in magnitude (E2M1 in halves), stored as bytes, so a run's sum r is an exact
  int32 of magnitude at most 16 * 144 = 2304. b is increased by 12 to make it unsigned, and r is initialized to -12
  times the sum of the a's.
* A term is t = r * s with s = sa * sb, scales' significands being below 2 with at most 4 bits, times the elements'
  units: |t| <= 2304 * 4 u 2^e <= 576 * 4 * 2^E for E2M1 with u = 1 / 4. It has at most 12 + 8 = 20 significant bits.
* As in `tile` the sum is stored as M + S q with M = 1.5 * 2^52 q, and one fused multiply-add that rounds toward zero,
  r * s onto it, multiplies, aligns, rounds down and adds. |S| <= runs * 2304 * 2^F + 2^(F + 1) + runs + 1 must be below
  2^51: F <= 37 for groups of 64.
* B's scales are multiplied by 1 + 2^-49, exact in 53 bits. s = sa * sb is then rounded to 53 bits, so that its excess
  is 2^-49 within 2^-52, in every rounding mode of the FPU. Let t / q = n + f have P <= 20 significant bits. If it is at
  least 2^(P - 1), then f = 0 and n times the excess is below 1 because n <= 2304 * 2^F < 2^48.5. If it is in
  [2^i, 2^(i + 1)) with i <= P - 2, then f <= 1 - 2^(i - P + 1), and the excess is below 2^(i + 1) * 2^-48.8.
  So rounding down gives n for t >= 0, and -(n + 1) for every -t < 0.
* The excess of rounding down is corrected by counting the negative r: those of runs with a zero scale are 0, because
  the packers make such runs zeros.
* A run is included in the search for E if it has a nonzero product, as a bit mask of each side shows; a sum that
  cancels keeps its exponent, as does a term that is truncated to zero.

C, M, and the end of the sum are computed by `sums`. NaN in a scale makes the sum NaN; the caller recomputes such
outputs.
"""

from typing import Any

import numpy as np

from lowprec._jit import cgutils, cpu_features, intrinsic, ir, kernel, types, variant

from ...vectors import F64, I8, I16, I32, I64, address, aligned_f64, fields, fill
from ..loop import make_gemm
from .portable import close_sums, open_sums
from .runs_pack import A_BYTES, B_BYTES, RUN
from .sums import COLUMNS, ROWS, Shape, WideSum

RESULTS = ("normal", "float32")
BATCH = 256  # rows that share one slice of a panel
SLICE = 1024  # products per slice of a panel
FACTOR = 1 + 2.0**-49
MAX_SUM = 2304  # of a run, in the elements' units


def make_tile(shape: Shape, dot_instruction: bool) -> Any:
    """Return the intrinsic ``tile(a, b, state, groups, sums)`` for use inside kernels.

    Arrays begin with the chain's first run::

        a, b        uint8: records of `runs_pack`
        state       [4][32] float64: C on entry (zero is +0), D on return
        groups      at least 1
        sums        `loop.Sums`: the group is whole runs

    `dot_instruction`: whether the CPU sums four products of bytes in one instruction (AVX-512 VNNI).
    """

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        *arrays, groups, sums = values
        a, b, state = (address(context, builder, *pair) for pair in zip(signature.args[:3], arrays, strict=True))
        _Tile(builder, shape, dot_instruction, a, b, state, groups, fields(builder, sums)).emit()
        return context.get_dummy_value()

    def tile(typingctx: Any, a: Any, b: Any, state: Any, groups: Any, sums: Any) -> Any:
        return types.void(a, b, state, types.intp, sums), codegen

    return intrinsic(tile)


class _Tile(WideSum):
    """Emits the instructions of one tile; methods are in the order of execution."""

    def __init__(
        self, builder: Any, shape: Shape, dot_instruction: bool, a: Any, b: Any, state: Any, groups: Any, sums: Any
    ) -> None:
        group, fraction_bits, keep, lowest = sums[0], *(builder.trunc(number, I32) for number in sums[1:])
        super().__init__(builder, shape, fraction_bits, keep)
        self.dot_instruction = dot_instruction
        self.a, self.b, self.state, self.groups = a, b, state, groups
        self.runs = builder.udiv(group, I64(RUN))
        self.step = shape.lanes * shape.vectors  # columns that are processed at a time
        self.ints = ir.VectorType(I32, self.step)
        self.shorts = ir.VectorType(I16, 4 * shape.lanes)  # number of bytes in a vector of float64
        least = builder.shl(builder.add(lowest, I32(1023)), I32(4))
        self.least = self.splat(builder.trunc(least, I16), self.shorts)

    def emit(self) -> None:
        b, lanes, wide = self.builder, self.shape.lanes, 4 * self.shape.lanes
        place = b.ptrtoint(cgutils.alloca_once(b, ir.ArrayType(I8, 2 * ROWS * COLUMNS)), I64)
        narrow = ir.VectorType(I16, lanes)
        with cgutils.for_range(b, self.groups) as loop:
            first = b.mul(loop.index, self.runs)
            a_group = self.at(self.a, b.mul(first, I64(A_BYTES)))
            b_group = self.at(self.b, b.mul(first, I64(B_BYTES)))
            for r, row in enumerate(self.largest_exponents(a_group, b_group)):
                for w, e in enumerate(row):
                    self.store(e, self.at(place, 2 * (r * COLUMNS + w * wide)), align=1)
            with cgutils.for_range(b, I64(COLUMNS // self.step)) as parts:
                j0 = b.mul(parts.index, I64(self.step))
                tops = []
                for r in range(ROWS):
                    line = self.at(place, b.mul(j0, I64(2)), 2 * r * COLUMNS)
                    words = [self.load(self.at(line, 2 * v * lanes), narrow, 1) for v in range(self.shape.vectors)]
                    longs = [b.shl(b.zext(word, self.longs), fill(self.longs, 48)) for word in words]
                    tops.append([b.bitcast(word, self.doubles) for word in longs])
                self.columns(a_group, b_group, j0, tops)

    def largest_exponents(self, a_group: Any, b_group: Any) -> list[list[Any]]:
        """Return the largest exponents among a group's runs, [4] rows of vectors."""
        b, wide = self.builder, 4 * self.shape.lanes
        twice = ir.VectorType(I32, 2 * self.shape.lanes)
        best = [[self.variable(self.least) for _ in range(COLUMNS // wide)] for _ in range(ROWS)]
        with cgutils.for_range(b, self.runs) as loop:
            a_run = self.at(a_group, b.mul(loop.index, I64(A_BYTES)))
            b_run = self.at(b_group, b.mul(loop.index, I64(B_BYTES)))
            for w in range(COLUMNS // wide):
                column = self.load(self.at(b_run, 768 + 2 * w * wide), self.shorts, 1)
                nonzero = self.load(self.at(b_run, 832 + 2 * w * wide), self.shorts, 1)
                for r in range(ROWS):
                    e, bits = (
                        b.bitcast(self.splat(self.load(self.at(a_run, at + 4 * r), I32), twice), self.shorts)
                        for at in (112, 128)
                    )
                    total, before = b.add(e, column), b.load(best[r][w])
                    some = b.icmp_signed("!=", b.and_(bits, nonzero), fill(self.shorts, 0))
                    larger = b.select(b.icmp_signed(">", total, before), total, before)
                    b.store(b.select(some, larger, before), best[r][w])
        return [[b.load(slot) for slot in row] for row in best]

    def columns(self, a_group: Any, b_group: Any, j0: Any, tops: list[list[Any]]) -> None:
        """Compute a group for ``lanes * vectors`` columns from `j0`: M and C, the runs, minus M."""
        b, lanes, vectors = self.builder, self.shape.lanes, self.shape.vectors
        places = [
            [self.at(self.state, b.mul(j0, I64(8)), 8 * (r * COLUMNS + v * lanes)) for v in range(vectors)]
            for r in range(ROWS)
        ]
        sums = [
            [self.opened(self.load(places[r][v], self.doubles), tops[r][v]) for v in range(vectors)]
            for r in range(ROWS)
        ]
        negative = [self.variable(fill(self.ints, 0)) for _ in range(ROWS)]
        with cgutils.for_range(b, self.runs) as loop:
            a_run = self.at(a_group, b.mul(loop.index, I64(A_BYTES)))
            b_run = self.at(b_group, b.mul(loop.index, I64(B_BYTES)))
            line = self.at(b_run, b.mul(j0, I64(4)))
            elements = [self.load(self.at(line, 4 * COLUMNS * t), self.ints) for t in range(4)]
            line = self.at(b_run, 512, b.mul(j0, I64(8)))
            scales = [self.load(self.at(line, 8 * v * lanes), self.doubles) for v in range(vectors)]
            for r in range(ROWS):
                words = [self.splat(self.load(self.at(a_run, 16 * t + 4 * r), I32), self.ints) for t in range(4)]
                total = self.dot(elements, words, self.splat(self.load(self.at(a_run, 96 + 4 * r), I32), self.ints))
                sign = b.ashr(total, fill(self.ints, 31))
                b.store(b.sub(b.load(negative[r]), sign), negative[r])
                scale = self.splat(self.load(self.at(a_run, 64 + 8 * r), F64), self.doubles)
                for v in range(vectors):
                    part = b.sitofp(self.pick(total, range(v * lanes, (v + 1) * lanes)), self.doubles)
                    term = self.multiply_add(part, b.fmul(scale, scales[v]), b.load(sums[r][v]))
                    b.store(term, sums[r][v])
        for r in range(ROWS):
            count = b.load(negative[r])
            for v in range(vectors):
                some = b.zext(self.pick(count, range(v * lanes, (v + 1) * lanes)), self.longs)
                whole = b.bitcast(b.add(b.bitcast(b.load(sums[r][v]), self.longs), some), self.doubles)
                self.store(self.finish(whole), places[r][v])

    def opened(self, c: Any, top: Any) -> Any:
        """Return a variable initialized to M plus C."""
        return self.variable(self.start(c, self.magic(c, top)))

    def dot(self, unsigned: list[Any], signed: list[Any], total: Any) -> Any:
        """Return `total` plus the products of bytes, 16 per column, as int32."""
        b = self.builder
        if self.dot_instruction:
            for x, y in zip(unsigned, signed, strict=True):
                total = self.call(f"llvm.x86.avx512.vpdpbusd.{32 * self.step}", self.ints, total, x, y)
            return total
        # Pairs of products, at most 2 * 24 * 12, are summed in 16 bits, at most 4 * 576.
        octets, pairs = ir.VectorType(I8, 4 * self.step), ir.VectorType(I16, 2 * self.step)
        name = "llvm.x86.avx512.pmaddubs.w.512" if self.step == 16 else "llvm.x86.avx2.pmadd.ub.sw"
        found = [
            self.call(name, pairs, b.bitcast(x, octets), b.bitcast(y, octets))
            for x, y in zip(unsigned, signed, strict=True)
        ]
        both = b.bitcast(b.add(b.add(found[0], found[1]), b.add(found[2], found[3])), self.ints)
        low = b.ashr(b.shl(both, fill(self.ints, 16)), fill(self.ints, 16))
        return b.add(total, b.add(low, b.ashr(both, fill(self.ints, 16))))


def _portable_tile(a, b, state, groups, sums):
    """Compute the tile in plain loops and the default rounding mode; B's scales have no factor.

    A term has at most 20 significant bits, so that it and its multiple by the power of two 1 / q are exact in float64,
    and its integer part is below 2^53, as are the tile's sums.
    """
    runs = sums.group // RUN
    least = np.int16((sums.lowest + 1023) << 4)
    top, summed = np.empty(4 * COLUMNS, np.int16), np.empty(COLUMNS, np.int32)
    total, inverse = aligned_f64(4 * COLUMNS), aligned_f64(4 * COLUMNS)
    a_words, a_numbers = a.view(np.int32), a.view(np.float64)
    b_words, b_numbers, b_shorts = b.view(np.int32), b.view(np.float64), b.view(np.int16)
    for g in range(groups):
        top[:] = least
        for run in range(g * runs, (g + 1) * runs):
            y = b_shorts[run * (B_BYTES // 2) + 384 : run * (B_BYTES // 2) + 416]
            z = b_shorts[run * (B_BYTES // 2) + 416 : run * (B_BYTES // 2) + 448]
            for r in range(ROWS):
                at = run * (A_BYTES // 4) + r
                e, bits = np.int16(a_words[at + 28]), np.int16(a_words[at + 32])
                t = top[r * COLUMNS : (r + 1) * COLUMNS]
                for j in range(COLUMNS):
                    sum_e = np.int16(e + y[j])
                    t[j] = max(t[j], sum_e) if np.int16(bits & z[j]) != np.int16(0) else t[j]
        open_sums(state, top, np.int32(sums.fraction_bits), False, total, inverse)
        for run in range(g * runs, (g + 1) * runs):
            w = b_words[run * (B_BYTES // 4) : run * (B_BYTES // 4) + 4 * COLUMNS]
            scale = b_numbers[run * (B_BYTES // 8) + 64 : run * (B_BYTES // 8) + 96]
            for r in range(ROWS):
                at = run * (A_BYTES // 4) + r
                summed[:] = a_words[at + 24]
                for t in range(4):
                    x = a_words[at + 4 * t]
                    x0, x1 = np.int32(x << np.int32(24)) >> np.int32(24), np.int32(x << np.int32(16)) >> np.int32(24)
                    x2, x3 = np.int32(x << np.int32(8)) >> np.int32(24), np.int32(x) >> np.int32(24)
                    line = w[t * COLUMNS : (t + 1) * COLUMNS]
                    for j in range(COLUMNS):
                        summed[j] += _four(line[j], np.int32(x0), np.int32(x1), np.int32(x2), np.int32(x3))
                s = a_numbers[run * (A_BYTES // 8) + 8 + r]
                into, inv = total[r * COLUMNS : (r + 1) * COLUMNS], inverse[r * COLUMNS : (r + 1) * COLUMNS]
                for j in range(COLUMNS):
                    into[j] += np.trunc(np.float64(summed[j]) * (s * scale[j]) * inv[j])
        close_sums(total, inverse, np.int32(sums.keep), False, state)


@kernel
def _four(word, x0, x1, x2, x3):
    """Return the sum of four products of A's elements and a word of B's."""
    mask = np.int32(0xFF)
    low = np.int32(x0 * np.int32(word & mask)) + np.int32(x1 * np.int32(np.int32(word >> np.int32(8)) & mask))
    high = np.int32(x2 * np.int32(np.int32(word >> np.int32(16)) & mask)) + np.int32(
        x3 * np.int32(np.int32(word >> np.int32(24)) & mask)
    )
    return np.int32(np.int32(low) + np.int32(high))


tile = None  # placeholder that `variant` replaces


def _sweep(a, b, state, place, sums, groups):
    """Add a block's products to the running sums; A and B are records of `runs_pack`."""
    runs = sums.group // RUN
    chunk = max(SLICE // sums.group, 1)
    for g0 in range(place.group, place.stop, chunk):
        count = min(chunk, place.stop - g0)
        panel = b[(place.column // COLUMNS * groups + g0) * runs * B_BYTES :]
        for i0 in range(place.row, place.end, ROWS):
            quad = a[(i0 // ROWS * groups + g0) * runs * A_BYTES :]
            d = state[(i0 - place.row) * COLUMNS : (i0 - place.row + ROWS) * COLUMNS]
            tile(quad, panel, d, count, sums)


def _variant(name: str, tile: Any, toward_zero: bool) -> Any:
    sweep = variant(_sweep, f"sweep_{name}", tile=tile)
    return make_gemm(f"gemm_runs_{name}", sweep, COLUMNS, BATCH, aligned_f64, toward_zero)


def _fast(result: str, lanes: int, embedded: bool) -> Any:
    shape = Shape(lanes, 2, embedded, interleaved=False, result=result)
    dots = embedded and "avx512vnni" in cpu_features()
    return _variant(f"{lanes}_{result}" + "_dot" * dots, make_tile(shape, dots), toward_zero=not embedded)


# By kind of result; each is compiled on first use.
gemm_avx512 = {result: _fast(result, 8, True) for result in RESULTS}
gemm_fma = {result: _fast(result, 4, False) for result in RESULTS}
gemm_portable = dict.fromkeys(RESULTS, _variant("portable", variant(_portable_tile, "tile"), toward_zero=False))
