"""Fast kernels at the edges of what they compute, and one step beyond: every bit as the reference has it.

NaN bits and signs of zero count; of inputs see `palettes`.
"""

import platform
import subprocess
import sys
import zlib
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from fast_kernels import KERNELS, agree, bits
from numpy.typing import NDArray
from palettes import ADDENDS, OPERANDS, SCALES, addend, scales

import lowprec as lp
from lowprec._threads import keep_freed_memory
from lowprec.cast.casts import round_in_place
from lowprec.tensorcore.engines import selection
from lowprec.tensorcore.engines.float32_lanes import LIMITS
from lowprec.tensorcore.grouped import grouped_gemm
from lowprec.tensorcore.problem import GemmProblem

Unit = lp.Accumulator
UNITS = [name for name in lp.accumulators if lp.accumulators[name].dtype != np.float64]
COLUMNS = (1, 17, 65)  # around the widths of tiles: 16, 32, 64
SPAN = 64  # k over which scales are constant: whole instructions of every accumulator


def seeded(*label: Any) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(repr(label).encode()))


def scale_codes(unit: Unit, rng: np.random.Generator, rows: int, k: int) -> NDArray[np.uint8]:
    """Scales inside the instruction: small and large numbers, and NaN, zero in a fifth."""
    fmt = lp.formats[str(unit.scale_format)]
    codes = rng.integers(0, 1 << fmt.bits, (rows, k // unit.scale_block))
    one = int(lp.encode(np.float64(1), fmt))
    return np.where(rng.random(codes.shape) < 0.8, one + rng.integers(-6, 6, codes.shape), codes).astype(np.uint8)


def chain(unit: Unit, formats: Any, operands: str, kind: str, shape: tuple[int, int, int], *label: Any) -> Any:
    """Operands and C of palettes, and scales inside the instruction if there are any, for K filled up to theirs."""
    rng, (m, n, k) = seeded(*label), shape
    scales = None
    if unit.scale_format is not None:
        k = -(-k // unit.scale_block) * unit.scale_block
        scales = scale_codes(unit, rng, m, k), scale_codes(unit, rng, n, k)
    a, b = (f(rng, fmt, rows, k) for f, fmt, rows in zip(OPERANDS[operands], formats, (m, n), strict=True))
    return a, b, addend(kind, rng, (m, n), unit.dtype), scales


def multiply(
    unit: Unit, formats: tuple[lp.Format, lp.Format], x: Any, rows: slice = slice(None), columns: slice = slice(None)
) -> NDArray[Any]:
    """Return some rows and columns of the chain that `chain` returned."""
    a, b, c, scales = x
    inside = {} if scales is None else {"a_scale": scales[0][rows], "b_scale": scales[1][columns]}
    c = None if c is None else c[rows, columns]
    return lp.mma(a[rows], b[columns], c, accumulator=unit, a_format=formats[0], b_format=formats[1], **inside)


LAST = slice(-1, None)


def formats_of(unit: Unit) -> tuple[lp.Format, lp.Format]:
    formats = unit.input_formats or (lp.formats["e4m3fn"], lp.formats["e5m2"])
    return formats[0], formats[-1]


def instructions(unit: Unit, formats: tuple[lp.Format, lp.Format], kernels: Sequence[str] = KERNELS) -> None:
    """Compare single chains: all operands with all addends; each of both meets every shape and length.

    An output has the same bits whatever rows and columns share its call.
    """
    group = unit.step()
    lengths = list(dict.fromkeys((0, 1, group - 1, 2 * group + 3, group, group + 1, 2 * group)))
    shapes = list(product((1, 5), COLUMNS))
    for (i, operands), (j, kind) in product(enumerate(OPERANDS), enumerate(ADDENDS)):
        m, n, k = *shapes[(i - j) % len(shapes)], lengths[(i + j) % len(lengths)]
        label = unit.name, operands, kind, m, n, k
        x = chain(unit, formats, operands, kind, (m, n, k), *label)
        want = agree(lambda x=x: multiply(unit, formats, x), *label, kernels=kernels)
        assert np.array_equal(bits(multiply(unit, formats, x, LAST, LAST)), bits(want[LAST, LAST])), ("alone", *label)


@pytest.mark.sampled(4, default=40)
@pytest.mark.parametrize("name", UNITS)
def test_instructions(name: str) -> None:
    instructions(lp.accumulators[name], formats_of(lp.accumulators[name]))


#: One accumulator per engine.
ENGINES = (
    "hopper_fp8", "hopper_bf16", "hopper_f16_f16", "blackwell_mxf8", "blackwell_nvfp4", "hopper_fp8_mma", "cdna2_f16",
    "cdna1_f16", "cdna3_f16", "avx512_bf16", "arm_fp8_fmlall",
)  # fmt: skip


@pytest.mark.sampled(5)
@pytest.mark.parametrize("shape", [(514, 3), (3, 1030), (261, 97)], ids=str)
@pytest.mark.parametrize("name", ENGINES)
def test_more_rows_and_columns_than_are_laid_out_together(name: str, shape: tuple[int, int]) -> None:
    unit = lp.accumulators[name]
    formats = formats_of(unit)
    x = chain(unit, formats, "usual", "edges", (*shape, unit.step() + 1), name, shape)
    agree(lambda: multiply(unit, formats, x), name, shape)


def quantized(
    unit: Unit, rng: np.random.Generator, operands: str, kind: str, shape: tuple[int, int, int], changing: bool
) -> tuple[lp.Quantized, lp.Quantized]:
    """Operands with scales that are as `kind` says, changing in k or of whole rows."""
    m, n, k = shape
    formats, found = formats_of(unit), []
    inside = unit.scale_format
    span = unit.scale_block or (SPAN if changing else 0)
    for side, (rows, own) in enumerate(zip((m, n), formats, strict=True)):
        fmt = lp.formats["float32"] if own == lp.formats["tf32"] else own
        codes = OPERANDS[operands][side](rng, fmt, rows, k)
        blocks = -(-k // span) if span else min(k, 1)
        if inside is None:
            scale = scales(kind, rows, blocks, side)
        else:
            scale = np.abs(lp.decode(scale_codes(unit, rng, rows, blocks * span), inside))
        found.append(lp.Quantized(codes, scale, fmt, f"1x{span}" if span else "row"))
    return found[0], found[1]


#: What `gemm` is asked besides, in turn.
OPTIONS: tuple[dict[str, Any], ...] = (
    {}, {"split_k": 2}, {"alpha": -1.0}, {"beta": -0.5}, {"split_k": 3, "alpha": 0.3}, {"out_format": "bfloat16"},
    {"library": "cublaslt"}, {"beta": 0.0},
)  # fmt: skip


def products(unit: Unit, kernels: Sequence[str] = KERNELS) -> None:
    """Compare products with scales around chains, promoted and not, plain and with what surrounds them."""
    chains = (None, "auto", SPAN) if unit.scale_format is None else (None,)
    runs_on = unit.has_running_sum and unit.dtype != np.float16
    # Rows and columns have scales of one kind where their number is even.
    shapes = [
        (5, 17, 2 * SPAN + 5), (4, 64, 3 * SPAN), (1, 1, 5 * SPAN), (5, 65, 3 * SPAN), (3, 2, 0), (4, 6, 3 * SPAN),
    ]  # fmt: skip
    for (i, kind), (j, every), changing in product(enumerate(SCALES), enumerate(chains), (True, False)):
        if every is None and changing and not runs_on:
            continue
        at = i + 3 * j + 5 * changing
        shape, operands = shapes[(i + j) % len(shapes)], list(OPERANDS)[at % len(OPERANDS)]
        around, c_kind = OPTIONS[at // 2 % len(OPTIONS)], ADDENDS[at // 2 % len(ADDENDS)]
        if at % 2 or (around.get("library") and changing):
            around, c_kind = {}, "none"
        label = unit.name, kind, operands, shape, every, changing, c_kind, around
        rng = seeded(*label)
        a, b = quantized(unit, rng, operands, kind, shape, changing)
        c = addend(c_kind, rng, shape[:2], "float32")
        options = {"accumulator": unit, "promote_every": every, **around}
        want = agree(lambda a=a, b=b, c=c, options=options: lp.gemm(a, b, c, **options), *label, kernels=kernels)
        alone = lp.gemm(a[LAST], b[LAST], None if c is None else c[LAST, LAST], **options)
        assert np.array_equal(bits(alone), bits(want[LAST, LAST])), ("alone", *label)


@pytest.mark.sampled(1, default=30)
@pytest.mark.parametrize("name", UNITS)
def test_products(name: str) -> None:
    products(lp.accumulators[name])


@pytest.mark.parametrize("name", ["hopper_fp8", "blackwell_fp8", "cdna2_f16", "blackwell_nvfp4"])
def test_products_of_experts(name: str) -> None:
    unit = lp.accumulators[name]
    for kind in SCALES if unit.scale_format is None else ["one"]:
        rng = seeded(name, kind)
        a, b = quantized(unit, rng, "special", kind, (9, 34, 2 * SPAN), True)
        half = [lp.Quantized(b.codes[i : i + 17], b.scale[i : i + 17], b.format, b.granularity) for i in (0, 17)]
        expert = np.array([0, 1, -1, 1, 0, 0, 1, -1, 1])
        options = {"expert": expert, "accumulator": unit, "promote_every": None}
        agree(lambda a=a, b=half, options=options: grouped_gemm(a, b, **options), name, kind)


@pytest.mark.parametrize("to", ["float32", "bfloat16", "e5m2"])
@pytest.mark.parametrize("k", [1, 4, 7])
def test_float32_products(k: int, to: str) -> None:
    """NaN, Inf against zero and Inf against Inf: one bit pattern in every place of the tile, its edge and beyond."""
    values = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, *[1.0, -1.5, 2.0] * 6], np.float32)
    rng = seeded("float32", k)
    x, y = (rng.choice(values, (rows, k)) for rows in (13, 131))
    x[:, 0], y[:, 0] = (np.where(rng.random(len(z)) < 0.5, z[:, 0], f) for z, f in ((x, np.nan), (y, -np.nan)))
    got = lp.matmul_f32(x, y, out_format=to)
    with np.errstate(invalid="ignore"):
        want = np.zeros((13, 131))
        for p in range(k):  # small numbers, exact in any order
            want += x[:, p, None].astype(float) * y[:, p].astype(float)
    sums = np.where(np.isnan(want), np.array([0x7FFFFFFF], np.uint32).view(np.float32), want.astype(np.float32))
    assert np.array_equal(bits(got), bits(sums if to == "float32" else lp.round_to(sums, to)))
    assert np.isnan(got).any()
    assert not np.isnan(got).all()


# --- machines at the kernels' own limits -----------------------------------------------------------------------------


def machines(limits: Any) -> list[tuple[Unit, tuple[lp.Format, lp.Format]]]:
    """Accumulators and formats at the limits of a kernel in float32 lanes, and one step beyond each."""
    hopper = lp.accumulators["hopper_fp8"].with_(input_formats=())
    wide = hopper.with_(output_format="float32")
    e4m3, e5m2 = lp.formats["e4m3fn"], lp.formats["e5m2"]
    (low, high), layout = limits.operand, {"exponent_bits": 5, "mantissa_bits": 2}
    ends = [lp.Format("low", bias=1 - e, **layout) for e in (low, low - 1)]
    ends += [lp.Format("high", bias=31 - e, specials="finite", **layout) for e in (high, high + 1)]
    long = [lp.Format("long", exponent_bits=3, mantissa_bits=m, specials="finite") for m in (3, 4)]
    bare = lp.Format("bare", exponent_bits=4, mantissa_bits=0, has_zero=False, specials="finite")
    return [
        *((hopper.with_(group_size=g), (e4m3, e5m2)) for g in (limits.group_size, limits.group_size + 4)),
        *((wide.with_(fraction_bits=b), (e4m3, e5m2)) for b in (3, limits.fraction_bits, limits.fraction_bits + 1)),
        *((hopper.with_(zero_exponent=z), (e4m3, e5m2)) for z in (limits.zero_exponent, limits.zero_exponent + 1)),
        *((wide.with_(fraction_bits=13), (f, f)) for f in (*ends, *long, bare)),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
def test_machines_at_the_limits_of_float32_lanes(kernel: str) -> None:
    for unit, pair in machines(LIMITS[kernel]):
        instructions(unit, pair, [kernel])


#: Machines that nobody has built with the kernels of CDNA1 and CDNA3.
AMD: list[tuple[str, str, dict[str, Any]]] = [
    ("cdna1_f16", "float16", {"group_size": 2}), ("cdna1_bf16", "bfloat16", {"group_size": 4}),
    ("cdna3_fp8", "e4m3fnuz", {"group_size": 1, "lanes": 1}), ("cdna3_fp8", "e5m2fnuz", {"group_size": 21, "lanes": 3}),
    ("cdna3_f16", "float16", {"fraction_bits": 3}), ("cdna3_f16", "float16", {"fraction_bits": 32}),
    ("cdna3_bf16", "bfloat16", {"group_size": 256}), ("cdna3_bf16", "bfloat16", {"group_size": 3, "lanes": 8}),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "fmt", "changes"), AMD, ids=str)
def test_amd_machines_that_nobody_has_built(name: str, fmt: str, changes: dict[str, Any]) -> None:
    unit, f = lp.accumulators[name].with_(**changes), lp.formats[fmt]
    assert selection.plan_for(unit, f, f).engine is not None
    instructions(unit, (f, f), ["auto"])


@pytest.mark.parametrize(("name", "fmt"), [("cdna1_f16", "float16"), ("cdna2_f16", "float16"), ("cdna3_f16", "float16"),
                                           ("cdna3_fp8", "e4m3fnuz")])  # fmt: skip
def test_groups_of_zeros_are_not_left_to_the_reference(name: str, fmt: str) -> None:
    machine, f = lp.accumulators[name], lp.formats[fmt]
    x = np.random.default_rng(5).standard_normal((20, 101)).astype(np.float32)
    x[3:9] = 0
    x[:, 32:64] = 0
    x[:, 1::2] *= x[:, 1::2] > 1
    engine = selection.plan_for(machine, f, f).engine
    assert engine is not None
    codes = lp.encode(x, fmt)
    found = engine.run(GemmProblem(codes, codes, f, f, np.zeros((20, 20), np.float32)))
    assert found.rows.size == found.columns.size == 0


#: Limits beyond which palettes find a wrong bit: one step, but where sums stay far from what the lanes hold. Nothing is
#: here of shorter operands and longer products, whose limits are those of the proof.
LOOSER: dict[str, Callable[[Any], Any]] = {
    "group_size": lambda most: most + 4,
    "fraction_bits": lambda most: most + 1,
    "operand": lambda most: (most[0], most[1] + 1),
    "zero_exponent": lambda most: most + 1,
    "lowest_c": lambda least: least - 1,
    "highest_c": lambda most: most + 8,
    "scale": lambda most: (most[0], most[1] + 2),
    "binades": lambda most: most + 130,
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("field", LOOSER)
def test_palettes_find_looser_limits(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = KERNELS[0]
    if (kernel, field) == ("portable", "group_size"):
        pytest.skip("counts nothing in words of 32 bits")
    before = LIMITS[kernel]
    monkeypatch.setitem(LIMITS, kernel, before._replace(**{field: LOOSER[field](getattr(before, field))}))
    monkeypatch.setattr(selection, "plans", {})

    def compare() -> None:
        for unit, pair in machines(before) if field not in ("scale", "binades") else ():
            instructions(unit, pair, [kernel])
        products(lp.accumulators["hopper_fp8"], [kernel])

    with pytest.raises(AssertionError, match="outputs, first"):
        compare()


# --- float32 products -------------------------------------------------------------------------------------------------


def operand(rng, rows, k):
    x = rng.standard_normal((rows, k)).astype(np.float32) * np.exp2(rng.integers(-70, 60, (rows, 1))).astype(np.float32)
    x[rng.random(x.shape) < 0.05] = 0
    return x


@pytest.mark.parametrize("fmt", ["bfloat16", "e4m3fn", "float32"])
@pytest.mark.parametrize(("m", "n", "k"), [(5, 3, 7), (130, 70, 33), (4, 64, 128), (1, 1, 0), (0, 3, 4), (700, 200, 6)])
def test_rounding_at_the_end_is_rounding_afterwards(fmt, m, n, k):
    rng = np.random.default_rng(m)
    a, b = operand(rng, m, k), operand(rng, n, k)
    if m and k > 3:
        a[m // 2, 1], b[n // 2, 2], a[0, 3] = np.inf, np.nan, 3e38
    with np.errstate(all="ignore"):
        sums = lp.matmul_f32(a, b)
        want = sums if fmt == "float32" else lp.round_to(sums, fmt)  # which gives NaN other bits
        for x, y in ((a, b), (np.asfortranarray(a), b), (a, np.asfortranarray(b))):
            assert lp.matmul_f32(x, y, out_format=fmt).tobytes() == want.tobytes()
        out = np.full((m, n), np.nan, np.float32)
        assert lp.matmul_f32(a, b, out, out_format=fmt) is out
        assert out.tobytes() == want.tobytes()


@pytest.mark.parametrize("fmt", ["bfloat16", "e4m3fn", "float32"])
def test_rounding_in_place_is_round_to(fmt):
    x = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    x[:4] = np.nan, np.inf, -0.0, 3e38
    want = lp.round_to(x, fmt)
    assert round_in_place(x, lp.formats[fmt]) is x
    assert x.tobytes() == want.tobytes()
    with pytest.raises(ValueError, match="contiguous"):
        round_in_place(np.ones((4, 4), np.float32)[:, ::2], lp.formats[fmt])


def test_memory_is_kept_unless_the_environment_says_no(monkeypatch):
    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")
    code = "from lowprec._threads import keep_freed_memory; print(keep_freed_memory())"
    monkeypatch.setenv("LOWPREC_KEEP_MEMORY", "0")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
