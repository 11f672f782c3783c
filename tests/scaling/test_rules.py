"""Scale rules: three passes are what the kernels do, scales in any format, functions as rules."""

import pickle
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import scale_rules
from numpy.typing import NDArray
from refusals import refusals

import lowprec as lp
from lowprec.definitions import code
from lowprec.scaling.job import largest_magnitude
from lowprec.scaling.passes import amax_of, cast, has_kernel, scales_by_amax
from lowprec.scaling.rules import AmaxRule, PythonRule, are_powers, scale_calculations

F32 = NDArray[np.float32]
WITH_KERNELS = [
    name for name in lp.quantizers
    if (q := lp.quantizers[name]).amax_history_len is None and q.rule.four_over_six is None and has_kernel(q)
]  # fmt: skip
#: Formats that scales can have: with a mantissa, and of powers of two.
MANTISSAS = [
    f.name for f in map(lp.formats.get, lp.formats)
    if f.bits <= 8 and f.mantissa_bits and not (f.is_integer or f.is_table)
]  # fmt: skip
POWERS = {"e5m0": lp.Format("e5m0", 5, 0, signed=False, specials="finite"), "e8m0fnu": lp.formats["e8m0fnu"]}


def matrix(rows: int = 40, columns: int = 272) -> F32:
    """Return numbers over many binades, with rows of zeros, -0, subnormals, and with NaN and Inf; blocks are ragged."""
    rng = np.random.default_rng(11)
    x = (rng.standard_normal((rows, columns)) * np.exp2(rng.integers(-24, 20, (rows, 1)))).astype(np.float32)
    x[5], x[6], x[7, :40], x[8, ::2] = 0, x[6] * np.float32(1e-20), 2.0**-149, -0.0
    x[9, 3], x[10, 5] = np.inf, np.nan
    return x


@pytest.mark.parametrize("name", WITH_KERNELS)
def test_the_kernels_are_three_passes(name):
    q = lp.quantizers[name]
    x = matrix()
    found = lp.quantize(x, q)
    values = x if q.hadamard_size is None else lp.hadamard(x, q.hadamard_size, q.hadamard_signs)
    values = values if q.transform_format is None else lp.round_to(values, q.transform_format)
    scales = scales_by_amax(q, amax_of(values, q.granularity), largest_magnitude(values))
    codes = np.empty_like(found.codes)
    cast(values, scales, q, codes, rounding=q.rounding)
    assert scales.block.view(np.uint32).tolist() == found.scale.view(np.uint32).tolist()
    assert codes.tolist() == found.codes.tolist()


@pytest.mark.parametrize("name", MANTISSAS)
def test_scales_in_any_format_with_a_mantissa(name):
    x = np.random.default_rng(1).standard_normal((64, 4096)).astype(np.float32)
    amax = np.abs(x.reshape(64, 256, 16)).max(-1)
    q = lp.quantize(
        x,
        lp.Quantizer().with_(
            format="e2m1fn", granularity="1x16", scale_format=name, scale_calculation="block_scale_only"
        ),
    )
    assert (q.scale == lp.round_to(amax / np.float32(6), name, overflow="saturate")).all()
    assert q.bits_per_value == 4 + lp.formats[name].bits / 16
    two = lp.quantize(x, lp.quantizers["nvfp4_te"].with_(scale_format=name))
    assert two.tensor_scale is not None
    assert two.scale.max() == lp.formats[name].max


@pytest.mark.parametrize("calculation", scale_calculations(POWERS["e8m0fnu"]))
def test_powers_of_two_stay_within_their_format(calculation):
    x = matrix()
    wide = lp.quantize(
        x,
        lp.Quantizer().with_(
            format="e4m3fn", granularity="1x32", scale_format="e8m0fnu", scale_calculation=calculation
        ),
    )
    few = POWERS["e5m0"]
    narrow = lp.quantize(
        x, lp.Quantizer().with_(format="e4m3fn", granularity="1x32", scale_format=few, scale_calculation=calculation)
    )
    assert are_powers(few)
    want = np.clip(wide.scale, np.float32(few.smallest_subnormal), np.float32(few.max))
    assert narrow.scale.view(np.uint32).tolist() == want.view(np.uint32).tolist()
    same = np.repeat(want == wide.scale, 32, axis=1)[:, : x.shape[1]]
    assert same.mean() > 0.5
    assert (narrow.codes == wide.codes)[same].all()


RULES = {name: getattr(scale_rules, name) for name in ("rms", "of_rows", "sweep", "two_level")}


@pytest.mark.parametrize("name", RULES)
def test_a_function_is_a_rule(name):
    x = matrix()
    stored = "float32" if name == "of_rows" else "ue5m3"
    mine = lp.Quantizer("mine", "e2m1fn", "1x16", stored, RULES[name])
    q = lp.quantize(x, mine)
    finite = np.isfinite(x.reshape(40, 17, 16)).all(-1)
    assert np.isnan(q.scale[~finite]).all()
    assert (q.scale[5] == 1).all()
    assert (lp.round_to(q.scale[finite], stored) == q.scale[finite]).all()
    blocks = np.where(finite[..., None], x.reshape(40, 17, 16), np.float32(0))
    given = RULES[name](blocks, lp.formats["e2m1fn"], lp.formats[stored])
    given, tensor = given if isinstance(given, tuple) else (given, np.float32(1))
    count = finite & blocks.any(-1)
    least = lp.formats[stored].smallest_subnormal
    want = lp.round_to(np.maximum(given, least), stored, overflow="saturate")
    assert (q.scale[count] == want[count]).all()
    divisor = np.maximum(q.scale * tensor, np.float32(2.0**-149))
    with np.errstate(all="ignore"):
        values = x / np.repeat(divisor, 16, axis=1)
    want = lp.encode(values, "e2m1fn", overflow="saturate")
    assert (q.codes == want)[np.repeat(finite, 16, axis=1)].all()
    fused = lp.quantize_dequantize(x, mine)
    assert fused.view(np.uint32).tolist() == q.dequantize().view(np.uint32).tolist()


def test_rules_work_wherever_quantizers_do(tmp_path):
    mine = lp.Quantizer("mine", "e2m1fn", "1x16", "ue5m3", scale_rules.rms)
    x = np.random.default_rng(2).standard_normal((64, 256)).astype(np.float32)
    q = lp.quantize(x, mine)
    q.save(tmp_path / "q.npz")
    assert lp.Quantized.load(tmp_path / "q.npz") == q
    assert q.requantize("16x1").granularity == lp.Granularity(16, 1)
    plain = lp.Quantized(q.codes, q.scale, "e2m1fn", "1x16", "ue5m3")
    assert (lp.gemm(q, q, accumulator="float32") == lp.gemm(plain, plain, accumulator="float32")).all()
    columns = lp.quantize(np.ascontiguousarray(x.T), mine.with_(granularity="16x1"))
    assert (columns.T.scale == q.scale).all()
    seeded = [lp.quantize(x, mine, rounding="stochastic", seed=3, offset=k).codes for k in (0, 0, 1)]
    assert (seeded[0] == seeded[1]).all()
    assert (seeded[0] != seeded[2]).any()


def test_a_rule_is_its_source(tmp_path):
    rule = PythonRule.of(scale_rules.of_rows)
    assert rule == PythonRule.of(scale_rules.of_rows)
    assert rule != PythonRule.of(scale_rules.rms)
    text = "import numpy as np\nTWO = 2\n\n\ndef f(b, e, s):\n    return np.abs(b).max(-1) / e.max * TWO\n"
    codes = []
    for change in (text, text + "\nother = 3\n", text.replace("TWO = 2", "TWO = 4")):
        file = tmp_path / f"rules{len(codes)}.py"
        file.write_text(change)
        namespace = {"__name__": "__main__", "__file__": str(file)}
        exec(compile(change, str(file), "exec"), namespace)
        codes.append(PythonRule.of(namespace["f"]).code)
    assert codes[0] == codes[1] != codes[2]


def test_a_rule_is_the_source_of_what_it_imports_too(tmp_path, monkeypatch):
    """An edit of another file of the user's is an edit of the rule; what decides nothing is none."""
    monkeypatch.syspath_prepend(tmp_path)
    rule, other = tmp_path / "ruled.py", tmp_path / "widest_of.py"
    used = "FACTOR = 1\n\n\ndef widest(b):\n    return b * FACTOR\n"

    def hashed(head: str, call: str, text: str) -> str:
        rule.write_text(f'{head}\n\n\ndef f(b, e, s):\n    """Doc."""\n    return {call}(b)\n')
        other.write_text(text)
        code._statements.cache_clear()  # files change within a tick of the clock
        return code.hash_of_source(str(rule), "f")

    heads = {
        "from widest_of import widest": "widest",
        "from widest_of import widest as w": "w",
        "import widest_of": "widest_of.widest",
        "import widest_of as w": "w.widest",
        "from widest_of import *": "widest",
        "try:\n    from widest_of import widest\nexcept ImportError:\n    widest = abs": "widest",
        "from .widest_of import widest": "widest",
        "def g(b):\n    import widest_of\n    return widest_of.widest(b)": "g",
        "from . import widest_of": "widest_of.widest",
    }
    for head, call in heads.items():
        before = hashed(head, call, used)
        assert hashed(head, call, used.replace("FACTOR = 1", "FACTOR = 64")) != before, head
        assert hashed(head, call, used.replace("return b", "return 2 * b")) != before, head
        assert hashed(head, call, "# a comment\n" + used) == before, head
    blocks = "if True:\n    SHIFT = 2\nTABLE = {}\nTABLE['a'] = 3\nTABLE.update(b=1)\nsetattr(TABLE, 'c', 5)"
    call = "(SHIFT + TABLE['a']) * abs"
    before = hashed(blocks, call, used)
    for change in (("SHIFT = 2", "SHIFT = 3"), ("= 3", "= 4"), ("b=1", "b=2"), ("5", "6")):
        assert hashed(blocks.replace(*change), call, used) != before, change
    hashed(blocks, call, used)
    rule.write_text(rule.read_text().replace("Doc.", "Another text."))
    code._statements.cache_clear()
    assert code.hash_of_source(str(rule), "f") == before


def test_rules_see_blocks_along_axis_1():
    x = matrix()[:, :256]
    for rule, stored in (("neighbours", "ue5m3"), ("row_scaled", "e4m3fn")):
        mine = lp.Quantizer("mine", "e2m1fn", "1x16", stored, getattr(scale_rules, rule))
        q, turned = lp.quantize(x, mine), lp.quantize(np.ascontiguousarray(x.T), mine.with_(granularity="16x1")).T
        assert np.array_equal(q.codes, turned.codes)
        assert np.array_equal(q.scale, turned.scale, equal_nan=True)


WORKER = """
import pickle, sys, numpy as np, lowprec as lp
mine, x, want = pickle.loads(open(sys.argv[1], "rb").read())
assert (lp.quantize(x, mine).codes == want).all()
"""


@pytest.mark.slow
def test_a_pickled_rule_is_loaded_from_its_file_or_refused(tmp_path):
    file = tmp_path / "own_rules.py"
    file.write_text(
        "import numpy as np\n\n\ndef f(b, e, s):\n    return np.maximum(np.abs(b).max(-1) / e.max, 1e-30)\n"
    )
    namespace = {"__name__": "own_rules", "__file__": str(file)}
    exec(compile(file.read_text(), str(file), "exec"), namespace)
    mine = lp.Quantizer("mine", "e4m3fn", rule=namespace["f"])
    x = np.random.default_rng(0).standard_normal((4, 256)).astype(np.float32)
    (tmp_path / "q.pickle").write_bytes(pickle.dumps((mine, x, lp.quantize(x, mine).codes)))
    command = [sys.executable, "-c", WORKER, str(tmp_path / "q.pickle")]
    assert subprocess.run(command, capture_output=True, text=True).returncode == 0
    file.write_text(file.read_text().replace("1e-30", "1e-20"))
    failed = subprocess.run(command, capture_output=True, text=True)
    assert "scale rule own_rules.py:f has changed since it was written: the hash of its source was" in failed.stderr
    file.unlink()
    failed = subprocess.run(command, capture_output=True, text=True)
    assert "neither the module 'own_rules' nor the file" in failed.stderr


def names():
    x = np.ones((2, 64), np.float32)

    def of(rule, **more):
        return lp.quantize(x, lp.Quantizer("mine", "e2m1fn", "1x16", rule=rule), **more)

    return {"x": x, "of": of, "rules": scale_rules, "AmaxRule": AmaxRule, "Q": lp.Quantizer, "partial": partial}


test_refused = refusals(
    [
        (
            "of(rules.one_short)",
            r"scale rule scale_rules.py:one_short must return scales of shape \(2, 4\), got \(2,",
        ),
        ("of(rules.negative)", "scale rule scale_rules.py:negative must return positive, finite scales, got -1.0"),
        ("of(rules.words)", "scale rule scale_rules.py:words must return block scales as an array of real numbers"),
        (
            "of(rules.rms, tensor_amax=1.0)",
            "must be None with float32 scales by scale_rules.py:rms, got 1.0",
        ),
        ("of(lambda b, e, s: 1)", "Quantizer: rule must be a function at module level, where worker processes"),
        (
            "of(rules.misspelt)",
            r"scale_rules.py:misspelt raised NameError: .*rule\(blocks, element_format, sc",
        ),
        ("of(rules.complex_scales)", "must return block scales as an array of real numbers, got array"),
        ("Q(rule=3)", TypeError, "Quantizer: rule must be an AmaxRule or a Python function, got 3"),
        (
            "Q(rule=partial(rules.rms))",
            TypeError,
            "must be an AmaxRule or a Python function, got functools.partial",
        ),
        (
            "Q(rule=rules.Callable())",
            TypeError,
            "must be an AmaxRule or a Python function, got <scale_rules.Callab",
        ),
        (
            "Q(rule=rules.rms, amax_history_len=16)",
            "Quantizer: amax_history_len must be None with a Python function as rule, got 16",
        ),
        (
            "Q(rule=rules.rms).with_(amax_floor=1.0)",
            TypeError,
            "rule must be an AmaxRule, to change its amax_floor, got scale_rules.py:rms",
        ),
        ("Q(scale_format='int8')", "scale_format must be float32 or a floating-point format of up to 8 bits, got int8"),
        ("Q(scale_format='bfloat16')", "scale_format must be float32 or a floating-point format of up to 8 bits"),
        ("Q(scale_format='hif8')", "AmaxRule: scale_format must have exponent and mantissa, got the table hif8"),
        (
            "Q(scale_format='e8m0fnu', rule=AmaxRule('te_folded'))",
            "AmaxRule with e8m0fnu scales: scale_calculation must be one of 'floor', 'ceil', 'even',",
        ),
        (
            "AmaxRule(four_over_six='mae')",
            "AmaxRule: scale_calculation must be 'direct' with four_over_six='mae', got 'amax/max'",
        ),
        ("AmaxRule(inf_block='rule')", "AmaxRule: inf_block must be one of one, nan, .* got 'rule'"),
        (
            "AmaxRule(scale_application='max/amax').check(lp.formats['e8m0fnu'])",
            "scales must be float32 and scale_calculation 'amax/max'",
        ),
        (
            "Q(scale_format='e4m3fn', rule=AmaxRule('direct', max_block_scale=500.0))",
            "max_block_scale must be at most e4m3fn's 448, got 500",
        ),
        (
            "lp.check(of(rules.rms), x)",
            "check: quantizer must have an AmaxRule, got mine with the rule scale_rules.py:rms",
        ),
    ],
    names,
)
