"""Bits depend on fields, never on names: an entry under a new name, or under that of another, gives the same bits.

Every entry of every catalogue is copied under a new name, and under the name of some other entry of its catalogue; what
it does to arrays, in products, on the wire and in training must not change.
"""

import dataclasses
import hashlib
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from entries import DOES, F32, bits, cast_bits, library_bits, matrix, product_bits, quantizer_bits

import lowprec as lp
from lowprec._values import Value
from lowprec.cast.constants import has_word_kernel
from lowprec.moe.data.corpus import corpus_from_bytes
from lowprec.moe.model.config import MoEConfig
from lowprec.moe.run.train import Schedule, Trainer
from lowprec.recipe import GemmSpec, TensorSpec
from lowprec.recipe.operands import quantize_operand
from lowprec.registry import Registry
from lowprec.tensorcore.matmul import matmul_f32


def names_for(catalogue: Registry[Any], name: str) -> tuple[str, str]:
    """Return a name that nothing has, and one that another entry has."""
    names = catalogue.names()
    return f"renamed_{name}", names[(names.index(name) + 1) % len(names)]


# --- formats, roundings, policies ------------------------------------------------------------------------------------


@pytest.mark.sampled(16)
@pytest.mark.parametrize("name", [*lp.formats, "p3109_k8p3se", "p3109_k6p4uf"])
def test_formats(name: str) -> None:
    fmt = lp.formats[name]
    for other in (replace(fmt, name=f"renamed_{name}"), replace(fmt, name="e5m2"), replace(fmt, name="float32")):
        for rounding in ("nearest_even", "toward_zero", "stochastic"):
            assert cast_bits(other, rounding) == cast_bits(fmt, rounding)
        assert cast_bits(other, policy="torch_2_13") == cast_bits(fmt, policy="torch_2_13")
        assert other.can_represent_all(fmt)
        assert other.ulp([0.3]) == fmt.ulp([0.3])
        assert bits(matmul_f32(matrix(), matrix(), out_format=other)) == bits(
            matmul_f32(matrix(), matrix(), out_format=fmt)
        )
        if fmt.bits <= 16 and has_word_kernel(fmt) and fmt.signed:
            assert quantizer_bits(lp.Quantizer(format=other)) == quantizer_bits(lp.Quantizer(format=fmt))


def test_a_name_alone_rounds_nothing_up() -> None:
    empty, cut = lp.Rounding("nearest_even"), lp.roundings["toward_zero"]
    assert cast_bits(lp.formats["e4m3fn"], empty) == cast_bits(lp.formats["e4m3fn"], cut)
    q, wanted = (lp.quantize(matrix(), "e4m3fn 1x128", rounding=r) for r in (empty, cut))
    assert bits(q.codes) == bits(wanted.codes)
    assert bits(q.codes) != bits(lp.quantize(matrix(), "e4m3fn 1x128").codes)


# --- quantizers ------------------------------------------------------------------------------------------------------


# --- products --------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(32)
@pytest.mark.parametrize("name", lp.accumulators)
def test_accumulators_of_renamed_formats(name: str) -> None:
    assert product_bits(lp.accumulators[name], rename=True) == product_bits(lp.accumulators[name])


def test_scales_are_read_in_the_accumulators_own_format() -> None:
    """Powers of two in 7 bits: the same codes mean other scales, in the fast kernel and in the reference."""
    shifted = replace(lp.formats["e8m0fnu"], name="e7m0", exponent_bits=7, bias=63)
    x = lp.encode(np.random.default_rng(4).standard_normal((3, 64)), "e4m3fn")
    scale = np.full((3, 2), 60, np.uint8)
    with lp.formats.scoped({shifted.name: shifted}):
        other = replace(lp.accumulators["blackwell_mxf8"], name="other", scale_format=shifted.name)
        for kernel in ("auto", "reference"):
            with lp.use_kernel(kernel):
                wanted = lp.mma(x, x, accumulator="blackwell_mxf8", a_scale=scale + 64, b_scale=scale + 64)
                assert lp.mma(x, x, accumulator=other, a_scale=scale, b_scale=scale).tolist() == wanted.tolist()


@pytest.mark.parametrize("name", lp.gemm_libraries)
def test_libraries_into_renamed_formats(name: str) -> None:
    assert library_bits(lp.gemm_libraries[name], rename=True) == library_bits(lp.gemm_libraries[name])


# --- every entry of these ----------------------------------------------------------------------------------------


def of_kinds(*kinds: str) -> list[tuple[str, str]]:
    return [(kind, name) for kind in kinds for name in DOES[kind][0].names()]


@pytest.mark.sampled(80)
@pytest.mark.parametrize(("kind", "name"), of_kinds("quantizer", "library", "codec"))
def test_a_copy_under_another_name_does_the_same(kind: str, name: str) -> None:
    catalogue, does, more = DOES[kind]
    wanted = does(catalogue[name])
    assert wanted
    for other in (*names_for(catalogue, name), *more):
        assert does(replace(catalogue[name], name=other)) == wanted, other
    with catalogue.scoped({f"renamed_{name}": replace(catalogue[name], name=f"renamed_{name}")}):
        assert does(catalogue[f"renamed_{name}"]) == wanted


@pytest.mark.sampled(40)
@pytest.mark.parametrize(("kind", "name"), of_kinds("rounding", "policy", "accumulator"))
def test_a_copy_of_what_takes_longer_does_the_same(kind: str, name: str) -> None:
    test_a_copy_under_another_name_does_the_same(kind, name)


# --- training --------------------------------------------------------------------------------------------------------

#: A model of ragged tiles, as small as one with all kinds of layers can be.
SMALL = MoEConfig(
    "small", dim=48, layers=3, dense_layers=1, heads=2, nope_dim=12, rope_dim=4, value_dim=10, q_rank=24, kv_rank=16,
    experts=4, top_k=2, expert_groups=2, topk_groups=1, expert_width=40, dense_width=56, sequence=16, batch=4,
    allow_partial_tiles=True,
)  # fmt: skip


def trained(recipe: lp.Recipe, config: MoEConfig = SMALL) -> str:
    """Return what two training steps make of everything: losses, norms, weights, moments."""
    text = corpus_from_bytes("bytes", bytes(np.random.default_rng(0).integers(0, 64, 20_000, np.uint8)), held_out=4000)
    trainer = Trainer(config, recipe, text, seed=1, schedule=Schedule(peak_lr=4e-3, warmup_steps=1, total_steps=10))
    digest = hashlib.sha256()
    for _ in range(2):
        record = trainer.step()
        digest.update(f"{record.loss.hex()} {record.grad_norm.hex()}".encode())
    for name in sorted(trainer.model.params):
        digest.update(trainer.model.params[name].tobytes())
    digest.update(trainer.evaluate(n_bytes=64).hex().encode())
    return digest.hexdigest()


@cache
def trained_as_it_is(recipe: lp.Recipe) -> str:
    return trained(recipe)


def renamed(value: Any) -> Any:
    """Return a value with another name, and so everything that it holds."""
    if isinstance(value, tuple):
        return tuple(map(renamed, value))
    if not isinstance(value, Value):
        return value
    fields = {field.name: renamed(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
    return replace(value, **fields | ({"name": f"renamed_{fields['name']}"} if "name" in fields else {}))


KEPT = {"layers.*.attn.q": "e5m6_1x128_ue8m0", "layers.*.attn.k": "bf16", "layers.*.attn.output": "fp16"}


# Products of float64 are BLAS's.
RECIPES = {name: lp.recipes[name] for name in lp.recipes if name != "float64"} | {
    f"{name} that keeps": lp.recipes[name].with_(storage=KEPT, moments="e4m3fn 1x128", master_weights="bfloat16")
    for name in ("bf16", "dsv3", "float32")
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_recipes(recipe: lp.Recipe) -> None:
    other = "dsv3" if recipe.name == "bf16" else "bf16"
    assert trained(replace(recipe, name=other)) == trained_as_it_is(recipe)
    other_names = renamed(recipe)
    assert other_names == recipe
    assert other_names.typical_linear.fprop.accumulator.name == f"renamed_{recipe.typical_linear.fprop.accumulator}"
    assert trained(other_names) == trained_as_it_is(recipe)


def test_recipes_call_entries_as_catalogues_do() -> None:
    quantizer = lp.quantizers["deepgemm"].with_(name="te_block")
    machine = replace(lp.accumulators["hopper_fp8"], name="ada_fp8")
    with (
        lp.quantizers.scoped(another=quantizer),
        lp.accumulators.scoped(another=machine),
        lp.formats.scoped(another_one=replace(lp.formats["e5m2"], name="e4m3fn")),
    ):
        assert TensorSpec.parse("another").resolved == quantizer
        assert GemmSpec("another", "another", "another", 128).accumulator == machine
        assert TensorSpec.parse("another_one 1x32").format == lp.formats["e5m2"]
    assert GemmSpec("e4m3fn 1x128", "e4m3fn 1x128", machine, 128).accumulator is machine


@pytest.mark.slow
def test_configurations() -> None:
    nano = lp.configs["nano"]  # larger ones take minutes, and differ in their numbers alone
    for config in (SMALL, nano):
        wanted = trained(lp.recipes["dsv3"], config)
        for name in ("renamed", "tiny"):
            assert trained(lp.recipes["dsv3"], replace(config, name=name)) == wanted


# --- the same name in two catalogues ---------------------------------------------------------------------------------


def known(catalogue: Registry[Any]) -> set[str]:
    return {*catalogue.names(), *(alias for name in catalogue for alias in catalogue.aliases(name))}


def operand(recipe: lp.Recipe, x: F32) -> F32:
    """Return what the input of most linear layers becomes; delayed scaling at the scale that it begins with."""
    return quantize_operand(recipe.typical_linear.x, x).dequantize()


def by_name(name: str, x: F32) -> dict[str, F32]:
    """Return what each catalogue that has a name makes of an array."""
    found: dict[str, F32] = {}
    if name in lp.quantizers:
        found["quantizer"] = lp.quantize_dequantize(x, lp.quantizers[name].with_(amax_history_len=None))
    if name in lp.codecs:
        found["codec"] = lp.codecs[name].round_trip(x)
    if name in lp.recipes:
        found["recipe"] = operand(lp.recipes[name], x)
    return found


CATALOGUES: list[Registry[Any]] = [lp.quantizers, lp.codecs, lp.recipes]
SHARED = sorted(n for n in set().union(*map(known, CATALOGUES)) if sum(n in c for c in CATALOGUES) > 1)


def test_some_names_are_shared() -> None:
    assert {"bf16", "mxfp8", "nvfp4", "te_block", "mxfp4_rceil", "mxfp4_floor"} <= set(SHARED)


@pytest.mark.parametrize("name", SHARED)
def test_equal_names_mean_equal_arithmetic(name: str) -> None:
    first, *others = by_name(name, matrix()).items()
    assert others
    for which, values in others:
        assert bits(values) == bits(first[1]), f"{name!r} as {which} is not what it is as {first[0]}"
