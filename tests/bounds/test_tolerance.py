"""Bounds of products: nothing exceeds them, correct kernels are accepted, and faults are named."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from floats import normal
from refusals import refusals
from test_checksum import BY_GEMM, families, operands

import lowprec as lp
from lowprec.bounds.faults import faults
from lowprec.bounds.power import criterion_power, results
from lowprec.bounds.product import Order, errors_of
from lowprec.bounds.tolerance import reordered
from lowprec.recipe.operands import as_quantized
from lowprec.testing import BitsEqual, Impossible, Inside, Unlike, assert_product


def pair(rng, m=32, n=48, k=512, kind="normal"):
    rng = np.random.default_rng(rng)
    x, y = lp.testing.operands(kind, m, n, k, seed=int(rng.integers(1 << 30)))
    return lp.quantize(x, "e4m3fn 1x128"), lp.quantize(y, "e4m3fn 128x128")


@pytest.mark.sampled(1, default=24)
@pytest.mark.parametrize("name", BY_GEMM)
def test_no_output_is_beyond_the_bound(name):
    accumulator = lp.accumulators[name]
    near = 0.0
    for fmt in accumulator.input_formats or (lp.formats["e4m3fn"],):
        for k in (38, 256) if fmt == accumulator.default_format else (38,):
            for family, x, y in families(np.random.default_rng(k), k):
                ab, intervals = operands(accumulator, fmt, x, y)
                for every in intervals:
                    options = {"accumulator": accumulator, "promote_every": every}
                    for out in ("float32", "bfloat16"):
                        t = lp.tolerance(*ab, out_format=out, orders=0, **options)
                        d = lp.gemm(*ab, out_format=out, **options)
                        outside, _ = t._outside(d.astype(np.float64))
                        assert not outside.any(), (fmt, k, family, every, out)
                        if out == "float32":
                            judged = np.isfinite(t.bound)
                            error = np.abs(d - t.exact)[judged] / np.maximum(t.bound[judged], 1e-300)
                            near = max(near, float(error.max(initial=0)))
    assert 0.01 < near <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "split"),
    [("deepgemm", 4), ("cublaslt", 1), ("cublaslt_fast", 2), ("cutlass_2xacc", 3), ("cutlass_serial", 3),
     ("cutlass_workspace", 3), ("cutlass_sliced", 2), ("cutlass_stream_k", None), ("det_gemm", None),
     ("batch_invariant_ops", None), (lp.GemmLibrary("apart", fma_promotion=False), 1),
     (lp.GemmLibrary("rounds", split_k_reduction="out"), 4), (lp.GemmLibrary("woven", k_order="interleaved"), 1),
     (lp.GemmLibrary("streams", stream_k=(7, 16, 16), split_tile=64), None)],
)  # fmt: skip
def test_libraries_splits_and_epilogues_compose(library, split):
    rng = np.random.default_rng(1)
    library, c = lp.gemm_libraries.get(library), normal(rng, 24, 40) * 50
    woven = library.k_order == "interleaved"
    for spec, accumulator in (("e4m3fn row", "hopper_fp8"), ("bfloat16", "float32"), ("nvfp4_te", "blackwell_nvfp4")):
        x, y = (normal(rng, rows, 1024) for rows in (24, 40))
        a, b = (
            as_quantized(lp.round_to(v, spec), spec) if spec == "bfloat16" else lp.quantize(v, spec) for v in (x, y)
        )
        if (woven and spec != "e4m3fn row") or (spec == "nvfp4_te" and ((split or 1) > 1 or library.slices > 1)):
            continue
        for out in ("float32", "bfloat16", "float16"):
            options = {
                "accumulator": accumulator, "split_k": split, "library": library, "alpha": 0.3, "beta": -1.7,
                "out_format": out,
            }  # fmt: skip
            t, d = lp.tolerance(a, b, c, orders=1, **options), lp.gemm(a, b, c, **options)
            assert not t._outside(d.astype(np.float64))[0].any()
            if out == "float16" and np.isinf(t.bound).any():
                continue  # parts without their scales may overflow
            assert np.isfinite(t.bound).all()
            for order in ("chains", "any"):
                moved = reordered(t.products[0], rng, order)
                wide = t if order == "chains" else lp.tolerance(a, b, c, orders=1, order="any", **options)
                assert moved is None or wide.test(lp.gemm(*moved, c, **options), name_faults=False)
            assert not t.test(d * 0, name_faults=False)


@pytest.mark.parametrize("size", [1e-22, 1e-20, 1e-18, 1e18, 1e19, 3e19])
def test_scales_may_underflow_or_overflow(size):
    for spec, library in (("e4m3fn 1x128", "deepgemm"), ("e4m3fn row", "cublaslt"), ("nvfp4_te", "deepgemm")):
        a, b = (lp.quantize(v * np.float32(size), spec) for v in lp.testing.operands("normal", 12, 16, 256))
        options = {"library": library, "accumulator": "blackwell_nvfp4" if spec == "nvfp4_te" else "hopper_fp8"}
        for out in ("float32", "e4m3fn"):
            t = lp.tolerance(a, b, orders=0, out_format=out, **options)
            d = lp.gemm(a, b, out_format=out, **options).astype(np.float64)
            assert not t._outside(d)[0].any()
            assert size > 1 or np.isfinite(t.bound).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hopper_fp8", "ada_fp8", "blackwell_fp8", "arm_fp8", "amx_fp8"])
def test_worst_cases_stay_within_the_bound_in_exact_arithmetic(name):
    """Coordinate search: change one code at a time if the exact error becomes larger."""
    rng, rule = np.random.default_rng(2), lp.accumulators[name]
    k, fmt = 2 * rule.group_size, lp.formats["e4m3fn"]
    codes = rng.integers(0, 0x7F, (64, k)).astype(np.uint8)
    codes[:, k // 2 :] &= 0x9F
    one = lp.Quantized(np.full((1, k), 0x38, np.uint8), np.ones((1, 1), np.float32), fmt, "tensor")
    order = Order(rule, lp.gemm_libraries["deepgemm"], None, 1, lp.formats["float32"])
    for _ in range(12):
        moved = codes.copy()
        moved[np.arange(64), rng.integers(0, k, 64)] = rng.integers(0, 0x7F, 64)
        worst = []
        for some in (codes, moved):
            q = lp.Quantized(some, np.ones((1, 1), np.float32), fmt, "tensor")
            d, found = lp.gemm(q, one, accumulator=rule, promote_every=None), errors_of(q, one, order)
            exact = [sum((Fraction(float(v)) for v in row), Fraction(0)) for row in lp.decode(some, fmt)]
            errors = [abs(Fraction(float(x)) - y) for x, y in zip(d[:, 0], exact, strict=True)]
            assert all(e <= Fraction(float(m)) for e, m in zip(errors, found.most[:, 0], strict=True))
            worst.append(np.array([float(e) for e in errors]))
        codes[worst[1] > worst[0]] = moved[worst[1] > worst[0]]


@pytest.mark.slow
def test_the_bound_is_near_the_largest_error():
    a, b = pair(3, 64, 96, 4096)
    for every, most in ((128, 20), (None, 60)):
        t = lp.tolerance(a, b, promote_every=every, orders=0)
        assert 1 <= t.bound.max() / np.abs(lp.gemm(a, b, promote_every=every) - t.exact).max() < most


@pytest.mark.slow
@pytest.mark.parametrize("order", ["chains", "any"])
@pytest.mark.parametrize("out", ["float32", "bfloat16"])
def test_right_kernels_are_accepted_in_other_orders(out, order):
    refused = different = 0
    for kind in lp.testing.data_kinds:
        a, b = pair(4, 16, 24, 384, kind)
        t = lp.tolerance(a, b, out_format=out, order=order)
        assert isinstance(t.test(lp.gemm(a, b, out_format=out)), BitsEqual)
        for seed in range(5):
            x, y = reordered(t.products[0], np.random.default_rng([9, seed]), order)
            verdict = t.test(lp.gemm(x, y, out_format=out), name_faults=False)
            refused += not verdict
            different += isinstance(verdict, Inside)
    assert refused == 0
    assert different or (out, order) == ("bfloat16", "chains")  # float32 additions hardly show


#: Faults that are smaller than what the arithmetic does itself, on the data below.
UNSEEN = {"scale 1 ulp off"}


@pytest.mark.slow
@pytest.mark.parametrize("out", ["float32", "bfloat16"])
def test_faults_are_refused_and_named(out):
    rng = np.random.default_rng(5)
    x, y = lp.testing.operands("normal", 64, 64, 512)
    a, b, c = lp.quantize(x, "e4m3fn 1x128"), lp.quantize(y, "e4m3fn 128x128"), normal(rng, 64, 64)
    t = lp.tolerance(a, b, c, out_format=out, alpha=0.5, beta=2.0, values=(x, y))
    wrong = {}
    for name, got in results(t.products[0]):
        verdict = t.test(got)
        if name == "right" or name in UNSEEN:
            assert verdict, name
        else:
            assert not verdict, name
            wrong[name] = verdict.cause
    assert {name: cause for name, cause in wrong.items() if cause != name} == {}
    assert len(wrong) >= 27
    assert all(name in wrong for name in faults if faults[name].vacuous)


@pytest.mark.parametrize(("m", "n", "k"), [(0, 4, 128), (4, 0, 128), (3, 4, 0)])
def test_operands_may_be_empty(m, n, k):
    a, b = (lp.quantize(np.ones((rows, k), np.float32), "e4m3fn row") for rows in (m, n))
    for order in ("chains", "any"):
        t = lp.tolerance(a, b, order=order, orders=1)
        assert t.exact.shape == (m, n)
        assert isinstance(t.test(lp.gemm(a, b)), BitsEqual)
        assert not m * n or isinstance(t.test(np.ones((m, n))), Impossible)
    for library in ("cutlass_stream_k", lp.gemm_libraries["deepgemm"].with_(k_order="interleaved")):
        d = lp.gemm(a, b, library=library)
        assert isinstance(lp.tolerance(a, b, library=library).test(d), BitsEqual)


@pytest.mark.parametrize(
    ("spec", "library", "message"),
    [
        ("e4m3fn 1x128", "cublaslt", "must be constant along K"),
        ("e4m3fn 128x128", lp.GemmLibrary("s", stream_k=(8, 64, 64)), "must be multiples of the 128 rows"),
    ],
)
def test_empty_operands_are_checked(spec, library, message):
    a, b = (lp.quantize(np.ones((rows, 256), np.float32), spec) for rows in (0, 256))
    with pytest.raises(ValueError, match=message):
        lp.gemm(a, b, library=library)


def test_faults_of_stream_k_are_named():
    """Tiles of 64 rows and 128 columns hold whole blocks of B's scales, in exchanged operands too."""
    rng, library = np.random.default_rng(0), lp.GemmLibrary("s", stream_k=(8, 64, 128))
    x, y = (normal(rng, rows, 256) for rows in (160, 256))
    a, b = lp.quantize(x, "e4m3fn 1x128"), lp.quantize(y, "e4m3fn 128x128")
    t, d = lp.tolerance(a, b, library=library), lp.gemm(a, b, library=library)
    wrong = d.copy()
    wrong[3] *= 1.5
    assert isinstance(t.test(wrong), Impossible)
    assert t.test(np.roll(d, 1, axis=1)).cause == "row neighbour, with A and B exchanged"


def test_any_order_reaches_beyond_a_promotion():
    """With one scale, a chain may take the largest products of all K, not only those of its own range."""
    x = np.ones((2, 256), np.float32)
    x[:, 128:] = 448
    a, b = (lp.quantize(v, "e4m3fn tensor") for v in (x, np.abs(x)))
    t = lp.tolerance(a, b, order="any", orders=1, promote_every=128)
    last = lp.tolerance(*(lp.quantize(v[:, 128:], "e4m3fn tensor") for v in (x, x)), order="any", orders=1)
    assert (t.bound >= 1.9 * last.bound).all()


def test_special_values_are_compared_by_place():
    x, y = lp.testing.operands("normal", 8, 8, 128)
    x[3, 5] = np.nan
    a, b = lp.quantize(x, "e4m3fn 1x128"), lp.quantize(y, "e4m3fn 1x128")
    t, d = lp.tolerance(a, b), lp.gemm(a, b)
    assert np.isnan(d[3]).all()
    assert isinstance(t.test(d), BitsEqual)
    swallowed = t.test(np.nan_to_num(d))
    assert isinstance(swallowed, Impossible)
    assert (swallowed.outside, swallowed.cause) == (8, "NaN swallowed")
    assert "is not the NaN or Inf that the operands give" in str(swallowed)
    for wrong, message in ((np.inf, "is off by inf"), (np.nan, "is NaN and should not be")):
        d[0, 0] = wrong
        verdict = t.test(d, name_faults=False)
        assert verdict.outside == 1
        assert message in str(verdict)


def test_the_message_says_what_to_do(monkeypatch):
    monkeypatch.setattr("lowprec.bounds.explain._SECONDS", 0.0)
    a, b = pair(6)
    d = lp.gemm(a, b)
    assert_product(d, a, b)
    with pytest.raises(AssertionError, match=r"It is what this does: sign\.\nEvery correct result is within atol="):
        assert_product(-d, a, b)
    d = lp.gemm(a, b, accumulator=lp.accumulators["hopper_fp8"].with_(fraction_bits=11))
    with pytest.raises(AssertionError, match="Is the arithmetic that of the kernel"):
        assert_product(d, a, b)


@pytest.mark.slow
def test_the_message_names_wrong_operands_and_the_arithmetic():
    values = [np.abs(x) for x in lp.testing.operands("normal", 24, 24, 256)]
    a, b = (lp.quantize(x, "e4m3fn 1x128") for x in values)
    with pytest.raises(AssertionError, match=r"Of 256 outputs: hopper_fp8 .*explains all"):
        assert_product(lp.gemm(a, b), a, b, accumulator="float32")
    moved = replace(a, scale=np.roll(a.scale, 1, axis=1))
    with pytest.raises(AssertionError, match=r"Operand a: 48 of 48 scales differ .*shifted by blocks"):
        assert_product(lp.gemm(moved, b) * np.float32(1.1), moved, b, values=values)


def test_faults_of_b_and_of_columns_are_named_and_placed():
    a, b = pair(10, 24, 32, 512)
    t, d = lp.tolerance(a, b), lp.gemm(a, b)
    moved = lp.gemm(a, replace(b, scale=np.roll(b.scale, 1, axis=1)))
    assert t.test(moved).cause == "scale of the neighbour, with A and B exchanged"
    assert t.test(np.roll(d, 1, axis=1)).cause == "row neighbour, with A and B exchanged"
    d[:, 20:] = 0
    with pytest.raises(AssertionError, match="in rows 0 to 23 and columns 20 to 31 only"):
        assert_product(d, a, b)


def test_a_missing_addend_shows_in_all_outputs_together():
    """C is half of the usual error, so that no single output and no sum of squares shows that it is missing."""
    a, b = pair(9, 64, 64, 512)
    c = lp.round_to(normal(np.random.default_rng(9), 64, 64), "bfloat16") * np.float32(2.0**-10)
    t = lp.tolerance(a, b, c)
    verdict = t.test(lp.gemm(a, b))
    assert isinstance(verdict, Unlike)
    assert verdict.cause == "C dropped"
    assert t.test(lp.gemm(a, b, c))
    assert lp.tolerance(a, b).test(lp.gemm(a, b, c), name_faults=False)


@pytest.mark.parametrize(
    ("fault", "kind", "spec", "accumulator"),
    [("saturation missing", "normal", "mxfp8_floor", "blackwell_mxf8"),
     ("NaN read as zero", "nan", "e4m3fn 1x128", "hopper_fp8"),
     ("global scale of another row", "normal", "nvfp4_te_row_scaled", "blackwell_nvfp4")],
)  # fmt: skip
def test_faults_of_few_operands_are_named(fault, kind, spec, accumulator):
    x, y = lp.testing.operands(kind, 16, 24, 256)
    a, b = lp.quantize(x, spec), lp.quantize(y, "nvfp4_te" if "nvfp4" in spec else spec)
    t = lp.tolerance(a, b, accumulator=accumulator, values=(x, y))
    verdict = t.test(faults[fault].apply(t.products[0]))
    assert isinstance(verdict, Impossible)
    assert verdict.cause == fault


@pytest.mark.parametrize("accumulator", ["hopper_fp8", "hopper_fp8_mma_f16"])
def test_the_bound_of_an_output_depends_on_its_own_row_and_column(accumulator):
    x, y = lp.testing.operands("normal", 70, 67, 300)
    options = {"accumulator": accumulator, "orders": 0}
    whole = lp.tolerance(lp.quantize(x, "e4m3fn 1x128"), lp.quantize(y, "e4m3fn 1x128"), **options)
    for rows, columns in ((slice(0, 1), slice(66, 67)), (slice(63, 70), slice(60, 66))):
        part = lp.tolerance(*(lp.quantize(v, "e4m3fn 1x128") for v in (x[rows], y[columns])), **options)
        for name in ("exact", "low", "high"):
            assert np.array_equal(getattr(part, name), getattr(whole, name)[rows, columns])


def test_atol_rtol_accept_right_kernels_and_refuse_less_when_a_probability_is_stated():
    a, b = pair(7)
    t = lp.tolerance(a, b, out_format="bfloat16")
    d = lp.gemm(a, b, out_format="bfloat16")
    proven, likely = t.atol_rtol(), t.atol_rtol(1e-6)
    for found in (proven, likely):
        assert np.allclose(d, t.exact, rtol=found.rtol, atol=found.atol)
    assert likely.atol < proven.atol
    assert not np.allclose(d * 1.05, t.exact, rtol=proven.rtol, atol=proven.atol)


@pytest.mark.slow
def test_criteria_are_measured():
    power = criterion_power("calc_diff<1e-3", m=64, n=64, k=512, draws=1)
    assert {"1.01x", "scale 6 % off", "A not quantized", "never promoted"} <= {r.kernel for r in power.rows if r.passes}
    assert power.vacuous == ()
    assert power.refused == 0
    assert power.sentence.startswith("calc_diff<1e-3: refuses a correct kernel in 0% of draws (95 % interval 0% to 9")
    loose = criterion_power("allclose(0, 1e9)", m=32, n=32, k=256, draws=1)
    assert "zeros" in loose.vacuous
    assert [row.ours for row in loose.rows if row.kernel in loose.vacuous] == [0, 0, 0]
    assert criterion_power("torch_bfloat16", m=64, n=64, k=512, draws=1).refused == 1


def test_orders_of_a_draw_are_one_trial():
    x, y = lp.testing.operands("normal", 8, 8, 512, seed=0)
    d = lp.gemm(lp.quantize(x, "e4m3fn 1x128"), lp.quantize(y, "e4m3fn 128x128"), accumulator="hopper_fp8")
    size = {"m": 8, "n": 8, "k": 512, "out_format": "float32", "draws": 1}
    power = criterion_power(lambda got, want: np.array_equal(got, d), **size)
    assert (power.refused, power.rows[0].draws, power.rows[0].ours) == (1, 1, 1)
    assert power.rows[0].interval == (0, pytest.approx(0.975))


@pytest.mark.parametrize("kind", lp.testing.data_kinds)
def test_data_are_what_they_are_for(kind):
    x, y = lp.testing.operands(kind, 4, 6, 256, seed=3)
    assert (x.shape, y.shape, x.dtype) == ((4, 256), (6, 256), np.float32)
    a, b = (lp.quantize(v, "e4m3fn 1x128 ue8m0") for v in (x, y))
    error = np.abs(lp.gemm(a, b, accumulator="blackwell_fp8") - lp.tolerance(a, b, accumulator="blackwell_fp8").exact)
    assert (error.max() == 0) or kind != "integers"


def _names():
    a, b = pair(8, 4, 6, 256)
    return {"a": a, "b": b, "t": lp.tolerance(a, b, out_format="bfloat16"), "check": lp.testing.criterion_power}


test_refusals = refusals(
    [
        ("lp.tolerance(np.ones((2, 2)), b)", TypeError, "tolerance: a must be Quantized"),
        ("lp.tolerance(a, b.T)", r"tolerance: a \[M, K\] and b \[N, K\] must have the same K"),
        ("lp.tolerance(a, b, speed=1)", TypeError, "tolerance: unknown option 'speed'; see lowprec.gemm"),
        ("lp.tolerance(a, b, accumulator=[])", "tolerance: accumulator must be one or more, got none"),
        ("lp.tolerance(a, b, accumulator=3)", TypeError, "accumulator must be a name or an Accumulator, got 3"),
        ("lp.tolerance(a, b, values=(np.ones((4, 8)), np.ones((6, 256))))",
         r"tolerance: values of a must have shape \(4, 256\), got \(4, 8\)"),
        *((f"t.atol_rtol({p})", r"atol_rtol: probability must be in \[0, 1\), got") for p in ("-1", "1", "np.nan")),
        ("lp.tolerance(a, b, accumulator='fp64')", "fp64: operands must be of float64, got e4m3fn"),
        ("lp.tolerance(a, b, np.ones(3))", r"tolerance: c must have shape \(4, 6\), got \(3,\)"),
        ("t.test(np.ones((6, 4)))", r"tolerance: got must have shape \(4, 6\), got \(6, 4\)"),
        ("t.test(np.full((4, 6), 1.001))", "must hold values of out_format=bfloat16, got 24 other values, such as 1"),
        ("lp.testing.criterion('size<3')", "criterion: unknown measure 'size'"),
        *((f"lp.testing.criterion('calc_diff<{x}')", f"criterion: limits must be finite numbers, got '{x}' in")
          for x in ("little", "nan", "inf")),
        *((f"lp.testing.criterion('allclose({x}, 0)')",
           f"criterion: limits must be finite numbers of at least 0, got '{x}' in") for x in ("inf", "1_0", "-1")),
        ("lp.testing.criterion('close')", "criterion: must be a name of the catalogue, NAME<LIMIT"),
        ("lp.testing.criterion(3)", "criterion: criterion must be a text or a callable, got 3"),
        ("check(lambda g, w: 1 / 0, m=4, n=4, k=128)", "it must accept or refuse arrays, got ZeroDivisionError"),
        ("check(lambda g, w, r=np.random.default_rng(0): r.random() < 0.5, m=4, n=4, k=128)",
         "it must not depend on chance, got two answers"),
        ("check(lambda g, w: g == w, m=4, n=4, k=128)", "it must return a bool, or None if it raises"),
        ("check(lambda g, w: 1e-4, m=4, n=4, k=128)", "it must return a bool, or None if it raises.*got 0.0001"),
        ("check('calc_diff<1', quantizers='mxfp8')", "criterion: quantizers must be a pair, those of a and of b"),
        ("lp.tolerance(a, b, alpha='x')", TypeError, "tolerance: alpha must be"),
        ("lp.testing.operands('odd', 1, 1, 1)", "odd"),
        ("lp.testing.Fault('f', 's')", "Fault f: product or output must be given, got neither"),
    ],
    _names,
)  # fmt: skip


@pytest.mark.sampled(1, default=4)
@pytest.mark.parametrize(
    "name", [name for name in BY_GEMM if lp.accumulators[name].output_format == lp.formats["float16"]]
)
def test_sums_that_overflow_have_no_finite_bound(name):
    """At the end of a chain, in a half of an instruction, and between two products of other signs."""
    rng, k, seen = np.random.default_rng(0), 128, 0
    fmt = lp.accumulators[name].default_format
    one = np.ones((1, 1), np.float32)
    for signs in (np.ones(k), np.where(np.arange(k) % 4 < 2, 1, -1), np.where(np.arange(k) < k // 2, 1, -1)):
        for limit in (0.97, 1.0, 1.03, 2.0, 4.0):
            size = np.sqrt(65504 * limit / k) * rng.uniform(0.99, 1.01, (2, 8, k))
            a, b = (lp.Quantized(lp.encode(x, fmt), one, fmt, "tensor") for x in (size[0], size[1] * signs))
            options = {"accumulator": name, "promote_every": None}
            infinite = np.isinf(lp.gemm(a, b, **options))
            seen += int(infinite.sum())
            assert np.isinf(lp.tolerance(a, b, orders=0, **options).bound[infinite]).all()
    assert seen > 100


@pytest.mark.parametrize("rounded_sum", ["chunk", "running"])
def test_chunks_that_overflow_have_no_finite_bound(rounded_sum):
    unit = lp.accumulators["aiu_dl8"].with_(rounded_sum=rounded_sum, chunk_format="dl8")
    q, small = (lp.Quantized(lp.encode(np.full((1, 64), x), "dl8"), np.ones((1, 1), np.float32), "dl8", "tensor")
                for x in (448, 0.5))  # fmt: skip
    options = {"accumulator": unit, "library": "cublaslt_fast"}
    assert np.isinf(lp.gemm(q, q, **options)).all()
    assert np.isinf(lp.tolerance(q, q, orders=0, **options).bound).all()
    assert np.isfinite(lp.tolerance(small, small, orders=0, **options).bound).all()
