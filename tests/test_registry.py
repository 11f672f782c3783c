"""Catalogues help when a name is wrong."""

import dataclasses
import re
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from refusals import refusals

import lowprec as lp
from lowprec._values import Value
from lowprec.interop import ml_dtype
from lowprec.registry import PUBLIC, Registry, UnknownNameError
from lowprec.tensorcore.matmul import matmul_f32


def test_lookup_by_name_alias_and_object() -> None:
    assert {KeyError, ValueError} <= set(UnknownNameError.__mro__)
    e4m3 = lp.formats["e4m3fn"]
    assert lp.formats["float8_e4m3fn"] is e4m3
    assert lp.formats.get(e4m3) is e4m3
    assert "float8_e4m3fn" in lp.formats
    assert "float8_e4m3fn" not in lp.formats.names()


def known() -> dict[str, Any]:
    registry = Registry("number", int)
    registry.register("one", 1)
    return {"registry": registry}


test_what_is_refused = refusals(
    [
        *((f"lp.encode(1.0, '{wrong}')", UnknownNameError, f"'{wrong}'.*'{close}'")
          for wrong, close in (("e4m3fm", "e4m3fn"), ("bfloat61", "bfloat16"), ("float32x", "float32"))),
        ("lp.accumulators['zzzzzz']", UnknownNameError, "expected one of hopper_fp8, ada_fp8"),
        ("lp.accumulators['hopper']", UnknownNameError, "did you mean 'hopper_fp8'"),
        ("lp.formats['E4M3']", UnknownNameError, "'e4m3fn' is the E4M3 of OCP"),
        ("lp.formats['fp8_e4m3']", UnknownNameError, "'e4m3fn' is the E4M3 of OCP"),
        ("lp.formats['E5M2']", UnknownNameError, "did you mean 'e5m2'"),
        ("lp.accumulators['h200']", UnknownNameError, "entries for H200 are 'hopper_fp8', 'hopper_fp8_f16'"),
        ("lp.accumulators['e5m2']", UnknownNameError, r"it is a format \(lowprec.formats\)"),
        ("lp.quantize([[1.0]], 'NVFP4')", UnknownNameError, "unknown word 'NVFP4' in 'NVFP4': did you mean 'nvfp4' or"),
        ("lp.quantize([[1.0]], 'hopper_fp8')", UnknownNameError, r"it is an accumulator \(lowprec.accumulators\)"),
        ("lp.Quantizer(granularity=128)", r"must be rows x columns such as '1x128' or \(1, 128\), or one of"),
        ("lp.quantize([[1.0]], 'fp8 1x1')", UnknownNameError, "unknown word 'fp8' in 'fp8 1x1': FP8 is 'e4m3fn' or"),
        ("lp.encode(1.0, 'nvfp4')", UnknownNameError, r"it is a quantizer \(lowprec.quantizers\), a recipe \("),
        ("lp.formats['mxfp4']", UnknownNameError, "lowprec.quantizers has 'mxfp4_floor' and 'mxfp4_ceil'"),
        ("lp.recipes['e4m3fn']", UnknownNameError, r"it is a format \(lowprec.formats\)"),
        ("lp.accumulators.get(3)", TypeError, "^accumulator must be a name or an Accumulator, got 3$"),
        ("lp.encode(1.0, 8)", TypeError, "format must be a name or a Format, got 8"),
        ("lp.encode(1.0, np.int64)", TypeError, "format must be a name or a Format, got <class 'numpy.int64'>"),
        ("registry.register('one', 2)", "name must be new, or replace=True, got number 'one'"),
    ],
    known,
)  # fmt: skip


def test_hints_look_in_every_public_catalogue() -> None:
    assert {name for name in lp.__all__ if isinstance(getattr(lp, name), Registry)} == set(PUBLIC)


def test_types_of_numpy_and_ml_dtypes_are_formats() -> None:
    y = np.float32([1.0, 448.0])
    for fmt in (ml_dtypes.float8_e4m3fn, np.dtype(ml_dtypes.float8_e4m3fn)):
        assert np.array_equal(lp.encode(y, fmt), lp.encode(y, "e4m3fn"))
        assert lp.formats.get(fmt) is lp.formats["e4m3fn"]
    assert lp.formats.get(np.float16) is lp.formats["float16"]


def test_an_equal_entry_may_come_again() -> None:
    mine = lp.Format("mine", exponent_bits=4, mantissa_bits=3)
    with lp.formats.scoped():
        for _ in range(2):
            lp.formats.register("mine", mine, ["ours"])
        same = lp.formats.register("mine", lp.Format("mine", exponent_bits=4, mantissa_bits=3))
        assert lp.formats["ours"] is same
        with pytest.raises(ValueError, match="got format 'ours', which is registered"):
            lp.formats.register("yours", mine, ["ours"])


def test_replacing() -> None:
    registry = Registry("number", int)
    registry.register("one", 1, ["eins"])
    registry.register("two", 2)
    registry.register("one", 11, ["uno"], replace=True)
    assert (registry["one"], registry["eins"], registry["uno"], registry.names()) == (11, 11, 11, ["one", "two"])
    registry.register("eins", 111, replace=True)
    assert (registry["one"], registry["eins"], registry.aliases("one")) == (11, 111, ["uno"])
    with pytest.raises(ValueError, match="an alias must not be the name of an entry, got 'two' for number 'three'"):
        registry.register("three", 3, ["two"], replace=True)
    assert "three" not in registry
    assert [registry.listed(name) for name in ("uno", "one", "zwei")] == ["one", "one", None]


def test_scopes() -> None:
    registry = Registry("number", int)
    registry.register("one", 1, ["eins"])

    def contents() -> dict[str, int]:
        return {name: registry[name] for name in registry}

    with registry.scoped({"two-b": 2}, one=11):
        assert (contents(), registry["eins"]) == ({"one": 11, "two-b": 2}, 11)
        with registry.scoped(one=111):
            registry.register("three", 3, ["drei"])
            assert contents() == {"one": 111, "two-b": 2, "three": 3}
        assert contents() == {"one": 11, "two-b": 2}
        assert "drei" not in registry
    assert contents() == {"one": 1}
    with pytest.raises(ZeroDivisionError), registry.scoped(two=2):
        _ = 1 // 0
    wrong: Any = {"two": 2, "three": "3"}
    with pytest.raises(TypeError, match=r"number .three. must be an int, got"), registry.scoped(wrong):
        pass
    assert (contents(), registry["eins"]) == ({"one": 1}, 1)


def _results() -> list[bytes]:
    """Return what follows from entries by way of caches: casts, scales, products."""
    x = np.linspace(-600, 600, 256, dtype=np.float32).reshape(2, 128)
    q = lp.quantize(x, "e4m3fn 1x128")
    return [
        lp.encode(x, "e4m3fn").tobytes(),
        lp.round_to(x, "float16", out=x.copy()).tobytes(),
        matmul_f32(x, x, out_format="bfloat16").tobytes(),
        q.codes.tobytes() + q.scale.tobytes(),
        lp.quantize(
            x,
            lp.Quantizer().with_(
                format="e2m1fn", granularity="1x16", scale_format="e4m3fn", scale_calculation="direct"
            ),
        ).scale.tobytes(),
        lp.quantize_dequantize(x, "e5m2 1x128").tobytes(),
        lp.mma(np.full((1, 32), 56, np.uint8), np.full((1, 32), 56, np.uint8)).tobytes(),
    ]


def test_nothing_stale_is_served() -> None:
    before = _results()
    assert before == _results()
    other = replace(lp.formats["e4m3fn"], bias=9)
    nan = replace(lp.policies["ocp_sat"], overflow="nan")
    coarse = replace(lp.formats["bfloat16"], mantissa_bits=3)
    small = replace(lp.formats["e4m3fn"], exponent_bits=5, mantissa_bits=2, specials="ieee", bias=15)
    with (
        lp.formats.scoped(e4m3fn=other, e5m2=lp.formats["float16"], bfloat16=coarse, float16=small),
        lp.policies.scoped(ocp_sat=nan),
    ):
        within = _results()
        # All but the product, whose accumulator holds its formats.
        assert [a != b for a, b in zip(before, within, strict=True)] == [True] * (len(before) - 1) + [False]
        lp.policies.register("ocp_sat", lp.policies["ocp_nonsat"], replace=True)
        assert lp.encode([1e9], "float16").item() == small.inf_code
    assert before == _results()
    for name in ("e5m2", "e4m3fn"):
        with lp.formats.scoped(mine=lp.formats[name]):
            assert ml_dtype("mine").name == f"float8_{name}"


def test_the_name_of_a_changed_entry_finds_it() -> None:
    """Numbers, None, bools, names and tuples of them are read back; a text that the field does not take is refused."""
    refused = set()
    for catalogue in PUBLIC:
        entries = getattr(lp, catalogue)
        for entry in (entries[name] for name in entries if isinstance(entries[name], Value)):
            for field in (f.name for f in dataclasses.fields(entry) if f.init and f.compare):
                changed = entry.with_(**{field: getattr(entry, field)})
                try:
                    found = entries[changed.name]
                except ValueError:
                    refused.add((catalogue, field))
                    continue
                assert (found, found.name) == (entry, changed.name)
    assert not {catalogue for catalogue, _ in refused} & {"accumulators", "gemm_libraries", "formats", "policies"}
    assert {("orders", "sum_formats"), ("collectives", "choices"), ("attentions", "scores")} <= refused
    twice = lp.accumulators["hopper_fp8(fraction_bits=7, group_size=16)"]
    assert (twice.fraction_bits, twice.group_size) == (7, 16)
    assert twice.name not in lp.accumulators
    assert lp.mma(np.zeros((1, 32), np.uint8), np.zeros((1, 32), np.uint8), accumulator=twice).tolist() == [[0]]
    for name, error in (
        ("hopper_fp8(bits=7)", "unknown field 'bits'"), ("hopper_fp8(fraction_bits=x)", "fraction_bits must be"),
        ("hoper_fp8(fraction_bits=7)", "unknown accumulator 'hoper_fp8"), ("hopper_fp8()", "did you mean"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=re.escape(error)):
            lp.accumulators[name]
    for get, error in (
        (lambda: lp.collectives["openmpi(choices=Choice())"], "with_() takes any value"),
        (lambda: lp.orders["sequential(sum_formats=float32)"], "with_() takes any value"),
        (
            lambda: lp.accumulators["hopper_fp8(name=mine)"],
            "unknown field 'name' in accumulator 'hopper_fp8(name=mine)",
        ),
    ):
        with pytest.raises(ValueError, match=re.escape(error)):
            get()
