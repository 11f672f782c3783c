"""`mma` of every machine in the catalogue against the oracle, bit for bit: adversarial, special and random operands."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from answers import once
from fast_kernels import KERNELS, bits
from hypothesis import given, settings
from hypothesis import strategies as st
from machine_inputs import ADDENDS, FAMILIES, Codes, Tile, dtype_of, tile
from machine_samples import Sample, Scaling, group_of, pairs_of, sample, samples

import lowprec as lp
from lowprec.oracle import ACCUMULATORS, FLOAT16, FLOAT32, FORMATS, Accumulator, FidelityPhases, PartialSums
from lowprec.oracle.machines.rdna import Rdna
from lowprec.testing import assert_bits_equal

FLOATS = {2: np.float16, 4: np.float32, 8: np.float64}
NAMES = list(ACCUMULATORS)


@pytest.mark.parametrize("name", lp.accumulators)
def test_every_accumulator_has_its_oracle(name: str) -> None:
    """The slow truth about it stands in `lowprec.oracle.accumulators`, by the rule that its kind names."""
    kind = type(lp.accumulators[name])
    assert name in ACCUMULATORS, f"lowprec/oracle/accumulators.py has no line for {name}: a {kind.oracle_class}"
    rule = type(ACCUMULATORS[name].rule).__name__
    assert rule == kind.oracle_class, f"{name} is a {kind.__name__}, whose oracle is {kind.oracle_class}, not {rule}"


def test_the_oracle_has_no_accumulator_more() -> None:
    assert set(ACCUMULATORS) <= set(lp.accumulators)


def mma(x: Tile, accumulator: Any, names: tuple[str, str], scales: Scaling = None, kernels: Any = KERNELS) -> Codes:
    """Bits of `mma`'s results, which must be the same on every kernel that this CPU runs."""
    given = {"accumulator": accumulator, "a_format": names[0], "b_format": names[1]}
    given |= {} if scales is None else {"a_scale": scales[0], "b_scale": scales[1]}
    c = x.c.view(FLOATS[x.c.dtype.itemsize])
    answers = []
    for kernel in kernels:
        with lp.use_kernel(kernel):
            out = lp.mma(x.a, x.b, c, **given)
        assert (out.dtype, out.shape) == (c.dtype, c.shape)
        answers.append(bits(out))
        assert np.array_equal(answers[-1], answers[0]), f"{x.name}: {kernel} and {kernels[0]} differ"
    return answers[0]


def check(ours: Codes, x: Sample) -> None:
    """Every bit is the oracle's. A NaN is the canonical one where the oracle has no payloads; of float64, any."""
    nan = {2: 0x7FFF, 4: 0x7FFFFFFF}.get(ours.dtype.itemsize)
    has_payload = isinstance(x.machine.rule, Rdna | PartialSums | FidelityPhases)
    for (i, j), wanted in zip(x.where, x.wanted(), strict=True):
        got = int(ours[i, j])
        both = np.array([got, wanted], ours.dtype).view(FLOATS[ours.dtype.itemsize])
        assert got == (nan or got if np.isnan(both).all() and not has_payload else wanted), (
            f"{x.names}, {x.tile.name} ({i}, {j}): {got:#x}, wanted {wanted:#x}; c {x.tile.c[i, j]:#x}, "
            f"a {x.tile.a[i].tolist()}, b {x.tile.b[j].tolist()}"
        )


def compare(accumulator: Any, x: Sample, kernels: Any = KERNELS) -> None:
    ours, t = mma(x.tile, accumulator, x.names, x.scales, kernels), x.tile
    once(lambda: check(ours, x), x.machine, x.names, t.a, t.b, t.c, x.scales, x.where, ours)


@pytest.mark.sampled(6, default=300)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", NAMES)
def test_mma_is_the_oracle(name: str, family: str) -> None:
    for x in samples(name, family):
        compare(name, x)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("family", ["narrow", "cancellation", "specials"])
@pytest.mark.parametrize("name", NAMES)
def test_tiles_larger_than_any_block_of_the_kernels(name: str, family: str) -> None:
    machine = ACCUMULATORS[name]
    group = group_of(machine)
    shape = (37, 83, 5 * group + 3) if family == "narrow" else (21, 37, 2 * group)
    compare(name, sample(machine, pairs_of(machine)[-1], family, shape, "near", count=25))


@pytest.mark.parametrize("exponent", [None, -120, -131, -132, -133, -134, -135, -140])
@pytest.mark.parametrize("name", ["ampere_bf16", "hopper_tf32", "hopper_f16_f16", "blackwell_fp8_f16"])
def test_any_exponent_of_zeros(name: str, exponent: int | None) -> None:
    """The tile that shows it is the last of the family of zeros."""
    exponent = exponent + 112 if exponent is not None and name.endswith("_f16") else exponent
    accumulator = lp.accumulators[name].with_(zero_exponent=exponent)
    machine = replace(ACCUMULATORS[name], rule=replace(ACCUMULATORS[name].rule, zero_exponent=exponent))
    for x in list(samples(name, "zeros"))[len(ADDENDS) :]:
        compare(accumulator, replace(x, machine=machine))


@pytest.mark.parametrize("name", [n for n in NAMES if "tf32" in n or "xf32" in n])
def test_tf32_machines_drop_the_low_bits_of_float32(name: str) -> None:
    machine = ACCUMULATORS[name]
    tf32 = FORMATS["tf32"]
    rng = np.random.default_rng(11)
    for family in ("narrow", "specials"):
        x = tile(family, (tf32, tf32, FLOAT32), (6, 5, 3 * group_of(machine)), "near")
        low_bits = Tile("low bits", *((s << 13) | rng.integers(1, 1 << 13, s.shape).astype(np.uint32) for s in (
            x.a, x.b)), x.c)  # fmt: skip
        assert np.array_equal(mma(low_bits, name, ("float32", "float32")), mma(x, name, ("tf32", "tf32")))
    payload = Tile("NaN", np.array([[0x7F800001]], np.uint32), np.array([[0x3F800000]], np.uint32), x.c[:1, :1] * 0)
    assert mma(payload, name, ("float32", "float32")).item() == 0x7F800000


@pytest.mark.sampled(48)
@pytest.mark.parametrize("name", NAMES)
def test_c_is_zero_unless_given(name: str) -> None:
    machine = ACCUMULATORS[name]
    x = sample(machine, pairs_of(machine)[0], "narrow", (3, 4, group_of(machine)), "near")
    x = replace(x, tile=replace(x.tile, c=np.zeros_like(x.tile.c)))
    scales = {} if x.scales is None else {"a_scale": x.scales[0], "b_scale": x.scales[1]}
    out = lp.mma(x.tile.a, x.tile.b, accumulator=name, a_format=x.names[0], b_format=x.names[1], **scales)
    check(bits(out), x)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ["e2m1fn", "e3m2fn", "e4m3fnuz", "e4m3b11fnuz", "e3m4", "bfloat16", "float16", "e5m6"])
def test_ideal_sums_of_other_formats(name: str) -> None:
    fmt, rng = lp.formats[name], np.random.default_rng(21)
    a, b = (rng.integers(0, 1 << fmt.bits, (5, 40)).astype(fmt.code_dtype) for _ in range(2))
    c = rng.standard_normal((5, 5)).astype(np.float32)
    for ideal in ("exact", "float32"):
        options = {"accumulator": ideal, "a_format": name, "b_format": name}
        if ideal == "exact" and fmt.bits > 8:
            with pytest.raises(ValueError, match=f"exact: products must be .*, got {name} x {name}"):
                lp.mma(a, b, c, **options)
            continue
        dot = ACCUMULATORS[ideal].rule.dot
        right = [dot(a[i].tolist(), b[j].tolist(), int(bits(c)[i, j]), fmt, fmt) for i, j in np.ndindex(5, 5)]
        right = np.array(right, np.uint32).view(np.float32).reshape(5, 5)
        assert_bits_equal(lp.mma(a, b, c, **options), right, nan="any")


# Machines that nobody has built


def what_if(name: str, **changes: Any) -> tuple[Any, Accumulator]:
    """A machine of the catalogue with some fields changed, and the oracle's."""
    machine = ACCUMULATORS[name]
    words = {
        "float32": "f32",
        "float16": "f16",
        "product_scale_log2": "exponent",
        "group_size": "group",
        "output_format": "output",
    }
    own = {words.get(key, key): words.get(value, value) for key, value in changes.items()}
    return lp.accumulators[name].with_(**changes), replace(machine, rule=replace(machine.rule, **own))


F32, F16 = {"output_format": "float32"}, {"output_format": "float16"}
SHORT = ("ladder", "cancellation", "special")
LONG = (*SHORT, "two ladders", "least", "zeros", "largest")
ALL = tuple(FAMILIES)
FP8_CHANGES: list[dict[str, Any]] = [
    {"fraction_bits": 25, **F32}, {"fraction_bits": 12}, {"fraction_bits": 14}, {"fraction_bits": 25},
    {**F32}, {"group_size": 8, "fraction_bits": 24, **F32}, {"group_size": 64}, {"group_size": 3},
    {"fraction_bits": 35, **F32}, {"fraction_bits": 3},
]  # fmt: skip
CPU_CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("avx512_bf16", {"group_size": 1}), ("avx512_bf16", {"group_size": 5}), ("amx_bf16", {"group_size": 8}),
    ("amx_bf16", {"group_size": 6}), ("amx_bf16", {"lanes": 1}), ("amx_f16", {"lanes": 4}),
    ("amx_fp8", {"group_size": 16}), ("amx_fp8", {"group_size": 12, "lanes": 3}),
    ("arm_bf16", {"group_size": 1}), ("arm_bf16", {"group_size": 4}), ("arm_bf16_ebf", {"group_size": 7}),
    ("arm_fp8", {"group_size": 9}), ("arm_fp8", {"product_scale_log2": -127}),
    ("arm_fp8", {"product_scale_log2": 100, "saturate": True}),
    ("arm_fp8_fmlall", {"product_scale_log2": -120}), ("arm_fp8_fmlall", {"product_scale_log2": 127}),
    ("arm_fp8_f16", {"product_scale_log2": -15}), ("arm_fp8_f16", {"saturate": True}),
]  # fmt: skip
#: Machine, families, and what is changed.
WHAT_IFS: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
    *(("hopper_fp8", ALL, changes) for changes in FP8_CHANGES),
    *((name, ALL, changes) for name, changes in CPU_CHANGES),
    *((name, families, {"fraction_bits": count, **more}) for count in range(3, 41) for name, families, more in (
        ("hopper_fp8", SHORT, {}), ("hopper_fp8", SHORT[:1], {**F32}),
        ("hopper_bf16", ("two ladders", "least"), {}), ("hopper_f16_f16", ("two ladders", "subnormal"), {}))),
    *((name, families, {"group_size": group})
      for group in (1, 2, 3, 5, 7, 8, 16, 31, 33, 64, 100, 127, 128, 255, 256) for name, families in (
        ("hopper_fp8", SHORT), ("blackwell_fp8", SHORT[:1]), ("ampere_f16", ("two ladders",)),
        ("hopper_fp8_f16", ("narrow",)))),
    *((name, LONG, {"output_format": output, "align": align}) for name, output, align in product(
        ("hopper_fp8", "hopper_fp8_f16", "blackwell_fp8", "hopper_bf16", "volta_f16"), ("fp22", "float32", "float16"),
        ("truncate", "floor", "nearest"))),
    *((name, SHORT, changes) for name in ("ada_fp8", "blackwell_mxf8", "turing_f16", "ampere_tf32") for changes in (
        {"fraction_bits": 20, **F32, "align": "floor", "group_size": 24}, {"fraction_bits": 40, "group_size": 256},
        {"fraction_bits": 3, "group_size": 1, "align": "nearest"}, {"fraction_bits": 30, **F16, "group_size": 6})),
    *(("ada_fp8", SHORT, {"group_size": group, "align": align, "fraction_bits": bits})
      for group, align, bits in product((12, 16), ("truncate", "floor", "nearest"), (5, 13))),
]  # fmt: skip


def case_id(x: Any) -> str:
    return f"{len(x)} families" if isinstance(x, tuple) else str(x)


@pytest.mark.sampled(40)
@pytest.mark.parametrize(("name", "families", "changes"), WHAT_IFS, ids=case_id)
def test_machines_that_nobody_has_built(name: str, families: tuple[str, ...], changes: dict[str, Any]) -> None:
    accumulator, machine = what_if(name, **changes)
    pair = machine.inputs[0], machine.inputs[-1]
    k = min(2 * group_of(machine) + 3, 300)
    for turn, family in enumerate(families):
        if (machine.inputs, changes.get("output_format"), family) != (("bfloat16",), "float16", "least"):
            addend = ADDENDS[turn % len(ADDENDS)] if families == ALL else "near"
            compare(accumulator, sample(machine, pair, family, (4, 19, k), addend, count=6), [*KERNELS, "reference"])


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.data())
def test_machines_at_random(data: st.DataObject) -> None:
    fused = ["hopper_fp8", "ampere_bf16", "hopper_f16", "blackwell_fp8", "ada_tf32"]
    runs = ["blackwell_nvfp4", "blackwell_mxf4", "blackwell_mxf4_16"]
    name = data.draw(st.sampled_from([*fused, *runs]))
    fields = {
        "group_size": st.integers(1, 80),
        "fraction_bits": st.integers(3, 40),
        "align": st.sampled_from(["truncate", "floor", "nearest"]),
        "output_format": st.sampled_from(["fp22", "float32", "float16"]),
        "zero_exponent": st.none() | st.integers(-150, -120),
    }
    changes = data.draw(st.fixed_dictionaries({}, optional=fields)) if name in fused else {}
    accumulator, machine = what_if(name, **changes)
    pair = data.draw(st.sampled_from(pairs_of(machine)))
    k = data.draw(st.integers(1, 3 * machine.rule.group))
    family, addend = data.draw(st.sampled_from(list(FAMILIES))), data.draw(st.sampled_from(ADDENDS))
    mode = data.draw(st.sampled_from(["near", "falling", "any", "low", "high"]))  # of scales
    compare(accumulator, sample(machine, pair, family, (3, 4, k), addend, mode, count=5))


@pytest.mark.parametrize("name", [
    "hopper_fp8", "hopper_f16", "hopper_bf16", "hopper_fp8_f16", "blackwell_mxf8", "cdna3_f16", "hopper_fp8_mma_f16",
    "blackwell_fp8_mma",
])  # fmt: skip
def test_promotion_adds_chains_to_c_in_float32(name: str) -> None:
    """``total = c; total = fl32(total + chain)`` for each chain of `promote_every` products, which starts from +0.

    A signalling NaN in C warns nobody, and comes out as the one NaN.
    """
    machine = ACCUMULATORS[name]
    every = 2 * group_of(machine)
    x = sample(machine, (machine.inputs[0], machine.inputs[0]), "narrow", (5, 6, 3 * every + 7), "near")
    x.tile.c[1, 2] = 0x7C01 if x.tile.c.dtype.itemsize == 2 else 0x7F800001
    ours = mma(x.tile, lp.accumulators[name].with_(promote_every=every), x.names, x.scales)
    floats = FLOATS[x.tile.c.dtype.itemsize]
    block = machine.scales[1] if machine.scales else 1
    with np.errstate(invalid="ignore"):
        total = x.tile.c.view(floats).astype(np.float32)
        for p in range(0, x.tile.a.shape[1], every):
            piece = Tile("", x.tile.a[:, p : p + every], x.tile.b[:, p : p + every], np.zeros_like(x.tile.c))
            part = None if x.scales is None else tuple(s[:, p // block : (p + every) // block] for s in x.scales)
            total = total + mma(piece, name, x.names, part).view(floats)
        assert_bits_equal(ours.view(floats), total.astype(floats), nan="any")
    assert ours[1, 2] == (0x7FFF if floats is np.float16 else 0x7FFFFFFF)


@pytest.mark.parametrize(("below", "minus", "plus"), [(23, -2, 2), (24, -1, 0), (25, -1, 0), (26, 0, 0), (27, 0, 0)])
def test_c_below_the_window_is_dropped(below: int, minus: int, plus: int) -> None:
    """CDNA3's FP8 floors C to 24 bits below the largest exponent, or drops it if it is 26 or more below."""
    one = lp.encode([[1.0] + [0.0] * 15], "e4m3fnuz")
    for kernel in ("reference", *KERNELS):
        for sign, ulps in ((-1, minus), (1, plus)):
            c = np.float32([[sign * 2.0**-below]])
            with lp.use_kernel(kernel):
                d = lp.mma(one, one, c, accumulator="cdna3_fp8", a_format="e4m3fnuz", b_format="e4m3fnuz")
            assert d == 1 + ulps * 2.0**-24, (kernel, c)


def test_the_inputs_hold_what_they_say() -> None:
    """Specials, subnormals, zeros and a c within reach of the products: else the tests above would say little."""
    for fmt in (FORMATS["float16"], FORMATS["e5m2"], FORMATS["bfloat16"]):
        top = (fmt.width, (1 << fmt.exponent_bits) - 1)
        for family, wanted in (("special", top[1]), ("subnormal", 0), ("zeros", 0)):
            x = tile(family, (fmt, fmt, FLOAT32), (16, 16, 32))
            field = x.a.astype(np.int64) >> fmt.mantissa_bits & top[1]
            assert np.any(field == wanted), family
        assert dtype_of(fmt) == x.a.dtype
    x = tile("narrow", (FLOAT16, FLOAT16, FLOAT32), (30, 30, 16), "near", kept=25)
    exponent = (x.c >> 23 & 0xFF).astype(int) - 127
    assert exponent.min() < -20
    assert exponent.max() >= 3
