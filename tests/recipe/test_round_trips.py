"""Recipes through TOML, JSON and pickles, here and in a spawned process: what comes back equals what went."""

import json
import pickle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lowprec as lp
from lowprec.definitions import short_hash
from lowprec.recipe import GemmSpec, LayerPrecision, LinearSpec, Recipe, TensorSpec, recipes
from lowprec.recipe.catalogue import every_block_linear
from lowprec.study.run.executors import workers

NARROW = [name for name in lp.formats if lp.formats[name].bits <= 8 and lp.formats[name].signed]
PLAIN = [
    name
    for name in lp.quantizers
    if lp.quantizers[name].hadamard_size is None and lp.quantizers[name].amax_history_len is None
]
OWN_LIBRARY = lp.GemmLibrary("deepgemm", apply_scales_at="end", promote_every=None)
#: Names that are taken, or mean something else in words.
names = st.sampled_from(
    ["mine", "e4m3fn", "deepgemm", "1x128", "resample_signs", "two words", "a=b", "hopper_fp8(run=2)", ""]
)
bits = st.integers(2, 5)


@st.composite
def own_formats(draw):
    return lp.Format(draw(names) or "f", draw(bits), draw(st.integers(1, 4)), bias=draw(bits))


@st.composite
def own_quantizers(draw):
    base = lp.quantizers[draw(st.sampled_from(PLAIN))]
    changes = {"amax_floor": 0.5, "format": draw(own_formats()), "granularity": "1x16", "rounding": "toward_zero"}
    kept = draw(st.sets(st.sampled_from(sorted(changes)), min_size=1))
    return base.with_(**{key: changes[key] for key in kept}, **draw(st.sampled_from([{}, {"name": draw(names)}])))


tensors = st.one_of(
    st.sampled_from([f"{f} 1x32 ue8m0" for f in NARROW] + [f"{q} stochastic" for q in PLAIN]), st.sampled_from(PLAIN),
    own_formats(), own_quantizers(),
)  # fmt: skip
accumulators = st.builds(
    lambda name, bits, own: lp.accumulators[name].with_(fraction_bits=bits, input_formats=(), **own),
    st.sampled_from(["hopper_fp8", "blackwell_fp8", "ada_fp8"]),
    st.integers(3, 25),
    names.map(lambda name: {"name": name} if name else {}),
)
changes = st.fixed_dictionaries(
    {},
    optional={
        "x": tensors, "w": tensors, "dy": tensors, "accumulator": st.one_of(st.just("exact"), accumulators),
        "promote_every": st.sampled_from([None, 32]), "library": st.sampled_from(["cublaslt", OWN_LIBRARY]),
        "moments": st.one_of(st.just("e4m3fn 1x128"), own_quantizers()), "weight_source": st.just("float32"),
        "dispatch": st.sampled_from(lp.codecs.names()), "storage": st.just({"embed": "fp8_1x128"}),
        "combine": st.builds(lambda name, f: lp.codecs["bf16"].with_(name=name, format=f), names, own_formats()),
        "all_reduce": st.sampled_from(["none", "4 ring fp8_1x128"]), "injected_error": st.just("gain=-0.25"),
        "layers": st.just({"layers.*.ffn.gate": {"out_format": lp.Format("out", 5, 6)}}),
        "protect": st.just(["layers.0.*"]),
        "attention": st.one_of(
            st.sampled_from([*lp.attentions.names(), "fa3_fp8 plain_gradient"]),
            st.builds(
                lambda name, own, tiles: lp.attentions[name].with_(p_offset=3, key_tiles=tiles, **own),
                st.sampled_from(["flash2", "fa3_bf16", "fa4_fp8"]), st.sampled_from([{}, {"name": "none"}]),
                st.just(((64, 32, 32, 32),)),
            ),
        ),
    },
)  # fmt: skip


def accepted(recipe, changes):
    """The changes that a recipe takes, in turn: not formats that no accumulator of it takes, for example."""
    kept = {}
    for key, value in {"accumulator": "exact", **changes}.items():
        try:
            recipe.with_(**kept, **{key: value})
        except ValueError:
            continue
        kept[key] = value
    return kept


@pytest.mark.slow
@given(name=st.sampled_from([name for name in recipes if name != "float64"]), wanted=changes)
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_what_comes_back_equals_what_went(name, wanted):
    recipe = recipes[name].with_(**accepted(recipes[name], wanted))
    kept = json.loads(json.dumps(recipe.as_dict()))
    back = [
        Recipe.from_toml(recipe.to_toml()), Recipe.from_dict(kept), Recipe.from_dict(kept, check=False),
        pickle.loads(pickle.dumps(recipe)),
    ]  # fmt: skip
    for other in back:
        assert other == recipe
        assert (hash(other), short_hash(other)) == (hash(recipe), kept["hash"])
        assert (other.name, other.description, other.source) == (recipe.name, recipe.description, recipe.source)
    precision = LayerPrecision.of(recipe, "layers.1.attn.wo", 8)
    assert LayerPrecision.from_key(precision.key) == precision


@pytest.mark.slow
@given(name=st.sampled_from([name for name in recipes if name != "float64"]), wanted=changes, cut=st.integers(0, 14))
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_changes_compose(name, wanted, cut):
    in_order = {key: value for key, value in wanted.items() if key not in ("layers", "protect")}
    changes = list(accepted(recipes[name], in_order).items())
    chained = recipes[name].with_(**dict(changes[:cut])).with_(**dict(changes[cut:]))
    at_once = recipes[name].with_(**dict(changes))
    assert chained == at_once
    assert (chained.name, chained.source) == (at_once.name, at_once.source)
    assert (chained.source, chained.description) == (f"what-if of {name}", "")


def test_objects_that_nobody_registered():
    e3m2, machine = lp.Format("e3m2", 3, 2), lp.accumulators["hopper_fp8"].with_(fraction_bits=9, input_formats=())
    tile = lp.Quantizer(format=e3m2, granularity="1x64").with_(name="", amax_floor=1e-6)
    recipe = recipes["dsv3"].with_(x=tile, w=tile, dy=e3m2, accumulator=machine, promote_every=None)
    spec = recipe.spec("layers.1.attn.wq_a")
    assert (spec.x, spec.dy) == (TensorSpec(e3m2, tile), TensorSpec(e3m2))
    assert spec.wgrad == GemmSpec(e3m2, tile.with_(name=""), machine.with_(name="hopper_fp8"))
    assert str(spec).startswith("x e3m2 1x64 floor=1e-06, w e3m2 1x64 floor=1e-06, dy e3m2 on hopper_fp8(fraction_bi")
    x = np.random.default_rng(0).standard_normal((4, 128)).astype(np.float32)
    assert np.array_equal(lp.quantize(x, spec.x).codes, lp.quantize(x, tile).codes)


@pytest.mark.parametrize("name", lp.attentions.names())
def test_attention_kernels_that_nobody_registered(name):
    kernel = lp.attentions[name]
    recipe = recipes["bf16"].with_(attention=kernel.with_(flush_subnormals=not kernel.flush_subnormals))
    assert recipe.attention.name not in lp.attentions
    assert Recipe.from_toml(recipe.to_toml()) == Recipe.from_dict(recipe.as_dict(), check=False) == recipe


def test_two_of_one_name_are_two():
    one, other = (lp.Format("mine", 4, bits) for bits in (2, 3))
    assert recipes["bf16"].with_(dy=one) != recipes["bf16"].with_(dy=other)
    assert recipes["bf16"].with_(dy=one) == recipes["bf16"].with_(dy=one.with_(name="yours"))
    assert LinearSpec().with_(x=one) != LinearSpec().with_(x=other)


@pytest.mark.slow
def test_a_spawned_process_has_the_same_recipe():
    own = lp.Quantizer("e4m3fn", format=lp.Format("e4m3fn", 3, 4), granularity="1x32")
    with lp.formats.scoped(registered=lp.Format("registered", 4, 2)):
        recipe = recipes["te_block"].with_(x=own, dy="registered 1x32", accumulator=lp.accumulators["exact"])
    with workers(1) as pool:
        assert pool.submit(short_hash, recipe).result() == short_hash(recipe)
        assert pool.submit(getattr, recipe, "rules").result() == recipe.rules
        text = pool.submit(Recipe.to_toml, recipe).result()
        assert Recipe.from_toml(text) == recipe


def test_rules_of_ones_own():
    """Rules are shared by layers; a change makes each layer's precision once."""
    recipe = Recipe(
        "mine", rules=every_block_linear(LinearSpec.from_tensors("e4m3fn 1x128", "e4m3fn 128x128", "e5m2 1x128"))
    )
    changed = recipe.with_(x="e5m2 1x128")
    assert len({id(rule.linear) for rule in changed.rules if rule.linear.quantized}) == 1
    assert recipe.with_(name="other", description="the same") == recipe
    assert recipe.with_(name="other").source == recipe.source
