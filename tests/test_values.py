"""Our objects are values: equal by what they hold, copied and pickled; they show themselves as text and as HTML."""

import copy
import dataclasses
import functools
import pickle
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lowprec as lp
from lowprec import costs
from lowprec._values import Value
from lowprec.measure.atlas import round_trip
from lowprec.moe.model.config import configs
from lowprec.tensorcore.kinds import KINDS

CATALOGUES = {
    name: getattr(lp, name)
    for name in (
        "formats",
        "policies",
        "roundings",
        "quantizers",
        "accumulators",
        "gemm_libraries",
        "attentions",
        "codecs",
        "orders",
        "norms",
        "recipes",
    )
} | {"configs": configs}
COPIES = (copy.copy, copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o)))
_X = np.random.default_rng(0).standard_normal((4, 512)).astype(np.float32)
_X[1, :128] = -0.0
_BF16 = _X.astype(ml_dtypes.bfloat16).astype(np.float32)


def _with_arrays():
    """Return by name what makes an object that holds arrays."""
    makes = {
        "Quantized": lambda: lp.quantize(_X, "e4m3fn 1x128"),
        "NVFP4": lambda: lp.quantize(_X, "nvfp4_te"),
        "LogFMT": lambda: lp.logfmt.encode(_X),
        "DeepEPMessage": lambda: lp.logfmt.encode(_BF16, variant="deepep", bits=10),
        "PackedB": lambda: lp.prepack_b(lp.quantize(_X, "e4m3fn 1x128")),
        "Check": lambda: lp.check(lp.quantize(_X, "e4m3fn 1x128").codes, _X, "dsv3_inference", scale=np.ones((4, 4))),
        "Passed": lambda: round_trip(_X, "fp8_1x128"),
    }
    wires = {
        f"Wire {name}": (lambda c=lp.codecs[name]: c.encode(np.resize(_BF16, (1, getattr(c, "columns_multiple", 512)))))
        for name in lp.codecs.names()
    }
    return makes | wires


@pytest.mark.parametrize("catalogue", CATALOGUES)
def test_entries_of_catalogues(catalogue):
    for name in CATALOGUES[catalogue].names():
        entry = CATALOGUES[catalogue][name]
        for how in COPIES:
            again = how(entry)
            assert again == entry, name
            assert hash(again) == hash(entry), name
            assert {entry: 1}[again] == 1


@pytest.mark.sampled(18)
@pytest.mark.parametrize("make", _with_arrays().values(), ids=_with_arrays().keys())
def test_what_holds_arrays(make):
    value = make()
    assert value == make()
    assert not value != make()  # noqa: SIM202  the operator is what is tested
    assert value != 1
    for how in COPIES:
        assert how(value) == value
    with pytest.raises(TypeError, match="unhashable"):
        hash(value)
    deep = copy.deepcopy(value)
    for f in dataclasses.fields(value):
        held = getattr(deep, f.name)
        if f.compare and isinstance(held, np.ndarray) and held.size and held.flags.writeable:
            held.reshape(-1)[-1:] = "other" if held.dtype.hasobject else held.reshape(-1)[-1] + held.dtype.type(1)
            assert deep != value
            break


def test_a_bit_that_differs_is_seen():
    x = _X.copy()
    x[0, 0] = np.nan
    q = lp.quantize(x, "e4m3fn 1x128")
    assert np.isnan(q.scale).any()
    assert q == lp.quantize(x, "e4m3fn 1x128")
    zero = dataclasses.replace(q, codes=np.where(q.codes == 0x80, 0, q.codes).astype(np.uint8))
    assert np.array_equal(zero.dequantize(), q.dequantize(), equal_nan=True)
    assert zero != q
    for change in ({"scale": q.scale * 2}, {"scale_format": "e8m0fnu"}, {"tensor_scale": 2.0}, {"format": "e4m3fnuz"}):
        assert dataclasses.replace(q, **change) != q


def test_a_copy_of_a_packed_operand_gives_the_same_bits():
    a, b = lp.quantize(_X, "e4m3fn 1x128"), lp.quantize(_X, "e4m3fn 1x128")
    packed = lp.prepack_b(b)
    want = lp.gemm(a, b)
    for how in COPIES:
        assert np.array_equal(lp.gemm(a, how(packed)), want)


def test_states_have_copies_of_their_own():
    state = lp.DelayedScaling("te_delayed")
    state.quantize(_X)
    for how in COPIES:
        other = how(state)
        assert other.history.tobytes() == state.history.tobytes()
        other.end_step()
        assert other.history[0] == 0 < state.history[0]


def test_what_is_neither_true_nor_false_is_refused():
    """Flags are counted with: a sign of 2 bits, a bias of two vectors."""
    entries = [lp.formats["e4m3fn"], lp.roundings["nearest_even"], lp.codecs["nvfp4"], costs.models["deepseek_v3"],
               costs.models["qwen2.5_72b"].attention]  # fmt: skip
    seen = 0
    for entry in entries:
        for f in dataclasses.fields(entry):
            if isinstance(value := getattr(entry, f.name), bool):
                seen += 1
                for same in (value, int(value), np.bool_(value)):
                    again = dataclasses.replace(entry, **{f.name: same})
                    assert again == entry
                    assert type(getattr(again, f.name)) is bool
                for bad in (2, -1, None, "", "no", 0.5, []):
                    with pytest.raises(ValueError, match=f"{f.name} must be True or False, got "):
                        dataclasses.replace(entry, **{f.name: bad})
    assert seen == 9


def test_fields_that_are_tuples():
    """A list is a tuple, a string where strings are wanted is one item, and anything else is refused by name."""
    seen = set()
    entries = [entry for catalogue in CATALOGUES.values() for entry in map(catalogue.__getitem__, catalogue.names())]
    for entry in (*entries, costs.NodesPerToken((0.5, 0.5))):
        for f in dataclasses.fields(entry):
            if not (f.init and str(f.type).startswith("tuple[")) or type(entry) is type(lp.recipes["bf16"]):
                continue
            texts = f.type in ("tuple[str, ...]", "tuple[Format, ...]")
            seen.add((type(entry).__name__, f.name))
            again = dataclasses.replace(entry, **{f.name: list(getattr(entry, f.name))})
            assert again == entry
            assert hash(again) == hash(entry)
            for bad in (None, 5, 0.5, b"e4m3fn", np.float32(1), *([(1,), [None]] if texts else ["12", ""])):
                with pytest.raises(TypeError, match=f"{type(entry).__name__}[^:]*: {f.name} must be a .*, got "):
                    dataclasses.replace(entry, **{f.name: bad})
    assert seen == {
        *((kind.__name__, "input_formats") for kind in KINDS), ("FlushedFmaSum", "daz_formats"),
        ("LaneChains", "daz_formats"), ("PairedLaneChains", "daz_formats"), ("Policy", "always_saturate"),
        ("TableFormat", "table"),
        ("SplitCodec", "parts"), ("NodesPerToken", "fractions"), ("AttentionKernel", "key_tiles"),
        ("AttentionKernel", "gradient_tiles"),
        ("OnesComplementSum", "daz_formats"), ("FlooredPairSum", "group_order"),
        ("FidelityPhaseSum", "phases"), ("GemmLibrary", "stream_k"), ("Norm", "functions"), ("Norm", "dtypes"),
        ("Norm", "row_orders"),
        *((kind, "sum_formats") for kind in ("Blocks", "Chain", "Lanes", "NumpyPairwise", "TorchCascade", "Tree")),
        ("Threads", "launches"), ("Threads", "sum_formats"),
    }  # fmt: skip


def test_a_string_is_one_format():
    for entry, field in (
        (lp.accumulators["hopper_fp8"], "input_formats"), (lp.accumulators["avx512_bf16"], "daz_formats"),
        (lp.policies["ocp_nonsat"], "always_saturate"),
    ):  # fmt: skip
        one = dataclasses.replace(entry, **{field: "e4m3fn"})
        assert one == dataclasses.replace(entry, **{field: ("e4m3fn",)})
        assert getattr(one, field) == (lp.formats["e4m3fn"],)


def test_numbers_of_numpy_in_costs():
    """They overflow, or lose digits, where Python's own do not."""
    v3 = costs.models["deepseek_v3"]
    for name in ("expert_groups", "top_k", "topk_groups"):
        changed = dataclasses.replace(v3, **{name: np.uint8(getattr(v3, name))})
        assert changed == v3
        assert changed.parameters == v3.parameters
        assert type(getattr(changed, name)) is int
    assert type(costs.Hardware("mine", bandwidth=np.float16(1)).bandwidth) is float
    assert costs.NodesPerToken((np.float16(0.5), np.float16(0.5))).fractions == (0.5, 0.5)
    small = np.float16(1e-4)
    assert costs.achieved_flops(np.float16(60000), np.float16(60000), 1) == costs.achieved_flops(60000.0, 60000.0, 1)
    assert costs.deepep_bandwidth(small, "fp8_1x128", 16) == costs.deepep_bandwidth(float(small), "fp8_1x128", 16)
    assert costs.bits_per_value(np.float16(8)) == costs.bits_per_value(np.uint8(8)) == 8.0
    assert costs.row_bytes(np.uint8(8), 7168) == costs.row_bytes(8, 7168)
    traffic = [costs.node_traffic(nodes_per_token=number(4)) for number in (np.float16, np.uint8, int)]
    assert traffic[0] == traffic[1] == traffic[2]


def test_numbers_of_numpy_in_fields(tmp_path):
    i = np.int64
    fmt = lp.Format("mine", exponent_bits=i(4), mantissa_bits=np.uint8(3), bias=np.int16(7), signed=np.True_)
    rule = lp.AmaxRule(amax_floor=np.float32(0.5), max_block_scale=np.float64(448))
    quantizer = lp.Quantizer("mine", fmt, rule=rule, hadamard_size=i(16), hadamard_signs=i(3))
    block = lp.Granularity(i(1), np.int32(128))
    entries = (fmt, quantizer, block, lp.accumulators["hopper_fp8"].with_(group_size=i(32), promote_every=i(64)))
    for entry in entries:
        for f in dataclasses.fields(entry):
            assert not isinstance(getattr(entry, f.name), np.generic), f.name
    rounding = lp.Rounding("mine", random_bits=np.uint8(3))
    assert lp.encode([1.1] * 4, "e4m3fn", rounding=rounding, seed=1).shape == (4,)
    assert fmt == lp.Format("mine", exponent_bits=4, mantissa_bits=3, bias=7)
    for q in (lp.quantize(_X, lp.Quantizer(format=fmt, granularity=block)), lp.quantize(_X, quantizer)):
        q.save(tmp_path / "q.npz")
        assert lp.Quantized.load(tmp_path / "q.npz") == q
    q = dataclasses.replace(lp.quantize(_X, "nvfp4_te"), tensor_scale=np.float64(0.25))
    q.save(tmp_path / "q.npz")
    assert lp.Quantized.load(tmp_path / "q.npz") == q


# --- objects show themselves ------------------------------------------------------------------------------------------


SHOWN = np.random.default_rng(0).standard_normal((4, 256)).astype(np.float32)


def _identified():
    a, b = lp.encode(SHOWN, "e4m3fn"), lp.encode(-SHOWN, "e4m3fn")
    return lp.identify(a, b, None, lp.mma(a, b, accumulator="ada_fp8"), a_format="e4m3fn", b_format="e4m3fn")


OBJECTS: dict[str, Callable[[], Any]] = {
    **{
        f"{kind} {name}": functools.partial(catalogue.__getitem__, name)
        for kind, catalogue in (("format", lp.formats), ("accumulator", lp.accumulators), ("recipe", lp.recipes))
        for name in catalogue
    },
    "own format": lambda: lp.Format("<b>&", exponent_bits=2, mantissa_bits=1, source="<script>"),
    "quantized": lambda: lp.quantize(SHOWN, "e4m3fn 1x128"),
    "quantized with a tensor scale": lambda: lp.quantize(SHOWN, "nvfp4_te"),
    "compared": lambda: lp.compare(SHOWN, SHOWN),
    "checked": lambda: lp.check(lp.quantize(SHOWN, "mxfp8_floor"), SHOWN, "mxfp8"),
    "identified": _identified,
}


@pytest.mark.parametrize("name", ["checked", "identified"])
def test_the_sentence_is_a_property(name):
    found = OBJECTS[name]()
    assert isinstance(found.sentence, str)
    assert found.sentence in repr(found)


def parsed(html: str) -> ElementTree.Element:
    return ElementTree.fromstring(f"<div>{html}</div>")


@pytest.mark.parametrize("name", OBJECTS)
def test_html_is_well_formed(name):
    root = parsed(OBJECTS[name]()._repr_html_())
    assert root.find(".//{*}table") is not None or root.find(".//{*}svg") is not None
    assert root.find(".//{*}script") is None


@pytest.mark.parametrize(
    ("shape", "shown"),
    [((), "scalar"), ((5,), "5"), ((2, 256), "2x256"), ((2, 3, 4), "2x3x4"), ((0,), "0"), ((3, 0), "3x0")],
)
@pytest.mark.parametrize("spec", ["e4m3fn 1x128", "mxfp8_floor", "nvfp4_te"])
def test_every_shape_of_quantized_is_shown(shape, shown, spec):
    q = lp.quantize(np.ones(shape, np.float32), spec)
    assert f"{q.format.name} {shown}, {q.granularity} with {q.scale_format} scales" in repr(q)
    cells = [cell.text for cell in parsed(q._repr_html_()).findall(".//{*}td")]
    assert cells[cells.index("shape") + 1] == shown.replace("x", " x ")


def _subclasses(base):
    return {name: cls for sub in base.__subclasses__() for name, cls in {sub.__name__: sub, **_subclasses(sub)}.items()}


@pytest.mark.parametrize(
    "catalogue",
    [lp.formats, lp.roundings, lp.policies, lp.quantizers, lp.accumulators, lp.gemm_libraries],
)
def test_the_repr_of_an_entry_is_python(catalogue):
    """Except for table formats, whose values are many, and fields that hold an entry of no catalogue."""
    names = _subclasses(Value)
    for entry in (catalogue[name] for name in catalogue):
        if isinstance(entry, lp.TableFormat) or "nearest_toward_zero" in repr(entry):
            assert isinstance(entry, lp.Quantizer) or repr(entry).startswith("<TableFormat ")
            continue
        assert eval(repr(entry), names) == entry


@pytest.mark.parametrize("name", lp.recipes)
def test_a_recipe_is_one_line(name):
    assert len(repr(lp.recipes[name])) < 200
    assert "\n" not in repr(lp.recipes[name])
    assert name in repr(lp.recipes[name])


@pytest.mark.parametrize("name", [name for name in lp.formats if lp.formats[name].bits <= 8])
def test_every_positive_value_has_a_tick(name):
    fmt = lp.formats[name]
    values = {float(v) for v in fmt.values() if v > 0 and np.isfinite(v)}
    ticks = [line for line in parsed(fmt._repr_html_()).findall(".//{*}line") if line.get("class") == "tick"]
    assert len(ticks) == 2 * len(values)


def test_a_precision_map_has_a_cell_for_every_product():
    text = "".join(parsed(lp.recipes["dsv3"]._repr_html_()).itertext())
    assert text.count("e4m3fn x e4m3fn") >= 3
    assert "hopper_fp8, promoted every 128" in text


def test_numbers_are_those_of_the_object():
    q = lp.quantize(SHOWN, "e4m3fn 1x128")
    text = "".join(parsed(q._repr_html_()).itertext())
    assert "8.25" in text
    assert f"{q.nbytes:,}" in text
