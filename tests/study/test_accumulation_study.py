"""Studies of single GEMMs: the published figures come out, the curves are what they say, the command writes them."""

import csv
from dataclasses import replace

import numpy as np
import pytest
from contract import MeasuringContract, Toy
from refusals import refusals

import lowprec as lp
from lowprec.study import TensorSetting, load
from lowprec.study.tensors.gemms import error_of, exact_product, quantized, sweep

SMALL = TensorSetting(rows=24, seeds=2, lengths=(128, 1024))
STUDY = load("accumulation")
TOY = Toy(replace(STUDY, claims=STUDY.claims[5:6]), SMALL)


class TestContract(MeasuringContract):
    pass


@pytest.mark.slow
def test_the_report_has_curves_and_claims(tmp_path):
    TOY.measure(tmp_path)
    assert (tmp_path / "accumulation.png").stat().st_size > 5000
    assert len((tmp_path / "accumulation.csv").read_text().splitlines()) == 1 + 2 * 5 * 2 * 2
    (claim,) = csv.DictReader((tmp_path / "claims.csv").read_text().splitlines())
    assert (claim["ours"], claim["agrees"], claim["command"]) == ("B200 25, Hopper 13, Ada 13", "yes", "here")
    assert "| fraction bits of FP8 sums on B200 | DeepGEMM, issue 176 | 25 |" in (tmp_path / "report.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("number", range(7))
def test_published_figures_come_out(number):
    assert len(STUDY.claims) == 7
    claim = STUDY.claims[number]
    ours = claim.measure()
    assert ours.holds, f"{claim.claim}: published {claim.published}, ours {ours.words}"


@pytest.mark.slow
def test_a_wrong_accumulator_does_not_give_them(monkeypatch):
    """With one fraction bit less every figure but the cleared bits is off, so agreement says something."""
    right = {name: lp.accumulators[name] for name in ("hopper_fp8", "ada_fp8")}

    def shortened(call):
        def wrong(*operands, accumulator="hopper_fp8", **rest):
            machine = right[accumulator].with_(fraction_bits=12) if accumulator in right else accumulator
            return call(*operands, accumulator=machine, **rest)

        return wrong

    for name in ("mma", "gemm"):
        monkeypatch.setattr(lp, name, shortened(getattr(lp, name)))
    for number in (0, 1, 3, 5):
        assert not STUDY.claims[number].measure().holds, STUDY.claims[number].claim


def test_errors_are_those_of_the_gemm():
    errors = sweep(STUDY, SMALL)
    assert errors.values.shape == (2, 2, 5, 2, 2)
    data = STUDY.data[1]
    rng = np.random.default_rng([1, 1])
    a, b = (lp.encode(data.draw(rng, (24, 1024)), "e4m3fn")[:, :128].copy() for _ in range(2))
    exact = exact_product(a, b, "e4m3fn")
    d = lp.gemm(quantized(a, "e4m3fn"), quantized(b, "e4m3fn"), promote_every=None)
    assert (errors.of("positive", "fp22", 128)[1], errors.of("positive", "fp22", 128, 1)[1]) == error_of(d, exact)
    # One chain of 128 is the same with promotion every 128; later ones are not.
    assert np.array_equal(errors.of("zero-mean", "fp22", 128), errors.of("zero-mean", "fp22_128", 128))
    assert (errors.of("positive", "fp22", 1024) > 10 * errors.of("positive", "fp22_128", 1024)).all()
    assert (errors.of("positive", "exact", 1024) <= errors.of("positive", "fp32", 1024)).all()
    assert np.array_equal(errors.values, sweep(STUDY, SMALL).values)


def test_exact_product_is_exact_or_refused():
    rng = np.random.default_rng(5)
    a, b = (rng.integers(0, 0x7F, (3, 200), dtype=np.uint8) for _ in range(2))
    whole = [(lp.decode(x, "e4m3fn").astype(np.float64) * 512).astype(np.int64).tolist() for x in (a, b)]
    expected = [[sum(x * y for x, y in zip(r, c, strict=True)) / 2**18 for c in whole[1]] for r in whole[0]]
    assert exact_product(a, b, "e4m3fn").tolist() == expected


def test_lengths_are_read_from_a_command():
    assert SMALL.with_({"lengths": "128,256", "rows": "8"}) == TensorSetting(rows=8, seeds=2, lengths=(128, 256))


test_refused = refusals([
    ("SMALL.with_({'lengths': '128,many'})", "lengths must be integers separated by commas, got '128,many'"),
    ("replace(STUDY.quick, seeds=0)", "seeds must be an integer from 1 to 1000000000, got 0"),
    ("TensorSetting(rows=1, seeds=1, lengths=())", r"lengths must be one length at least, got \(\)"),
    ("replace(STUDY, arms=(STUDY.arms[0], STUDY.arms[0]))", "every arm must have a different name"),
    ("exact_product(*[np.full((1, 4), 0x7B, np.uint8)] * 2, 'e5m2')", "exact_product: sums must be exact in"),
], lambda: globals())  # fmt: skip
