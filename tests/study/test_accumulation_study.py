"""Studies of single GEMMs: the published figures come out, the curves are what they say, the command writes them."""

import csv
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import lowprec as lp
from lowprec.cli import app as cli
from lowprec.study import Claim, Measured, TensorSetting, TensorStudy, load
from lowprec.study.kinds.tensors.kind import TensorKind
from lowprec.study.kinds.tensors.study import error_of, exact_product, quantized, sweep

SMALL = TensorSetting(rows=24, seeds=2, lengths=(128, 1024))


@pytest.fixture(scope="module")
def study() -> TensorStudy:
    found = load("accumulation")
    assert isinstance(found, TensorStudy)
    return found


def command(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.cli, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", range(7))
def test_published_figures_come_out(study: TensorStudy, number: int) -> None:
    assert len(study.claims) == 7
    claim = study.claims[number]
    ours = claim.measure()
    assert ours.holds, f"{claim.claim}: published {claim.published}, ours {ours.words}"


@pytest.mark.slow
def test_a_wrong_accumulator_does_not_give_them(study: TensorStudy, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one fraction bit less every figure but the cleared bits is off, so agreement says something."""
    right = {name: lp.accumulators[name] for name in ("hopper_fp8", "ada_fp8")}
    mma, gemm = lp.mma, lp.gemm

    def shortened(accumulator: object) -> object:
        return right[accumulator].with_(fraction_bits=12) if accumulator in right else accumulator

    def wrong_mma(*operands: object, accumulator: object = "hopper_fp8", **rest: object) -> object:
        return mma(*operands, accumulator=shortened(accumulator), **rest)  # type: ignore[arg-type]

    def wrong_gemm(*operands: object, accumulator: object = "hopper_fp8", **rest: object) -> object:
        return gemm(*operands, accumulator=shortened(accumulator), **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(lp, "mma", wrong_mma)
    monkeypatch.setattr(lp, "gemm", wrong_gemm)
    for number in (0, 1, 3, 5):
        assert not study.claims[number].measure().holds, study.claims[number].claim


def test_errors_are_those_of_the_gemm(study: TensorStudy) -> None:
    errors = sweep(study, SMALL)
    assert errors.values.shape == (2, 2, 5, 2, 2)
    data = study.data[1]
    rng = np.random.default_rng([1, 1])
    a, b = (lp.encode(data.draw(rng, (24, 1024)), "e4m3fn")[:, :128].copy() for _ in range(2))
    exact = exact_product(a, b, "e4m3fn")
    d = lp.gemm(quantized(a, "e4m3fn"), quantized(b, "e4m3fn"), promote_every=None)
    assert (errors.of("positive", "fp22", 128)[1], errors.of("positive", "fp22", 128, 1)[1]) == error_of(d, exact)
    # One chain of 128 is the same with promotion every 128; later ones are not.
    assert np.array_equal(errors.of("zero-mean", "fp22", 128), errors.of("zero-mean", "fp22_128", 128))
    assert (errors.of("positive", "fp22", 1024) > 10 * errors.of("positive", "fp22_128", 1024)).all()
    assert (errors.of("positive", "exact", 1024) <= errors.of("positive", "fp32", 1024)).all()
    assert np.array_equal(errors.values, sweep(study, SMALL).values)


def test_exact_product_is_exact_or_refused() -> None:
    rng = np.random.default_rng(5)
    a, b = (rng.integers(0, 0x7F, (3, 200), dtype=np.uint8) for _ in range(2))
    whole = [(lp.decode(x, "e4m3fn").astype(np.float64) * 512).astype(np.int64).tolist() for x in (a, b)]
    expected = [[sum(x * y for x, y in zip(r, c, strict=True)) / 2**18 for c in whole[1]] for r in whole[0]]
    assert exact_product(a, b, "e4m3fn").tolist() == expected
    with pytest.raises(ValueError, match="do not fit float64"):
        exact_product(*(np.full((1, 4), 0x7B, np.uint8) for _ in range(2)), "e5m2")


@pytest.mark.slow
def test_command_writes_table_figure_and_numbers(
    study: TensorStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = (study.claims[5], Claim("never", "nowhere", "1", lambda: Measured("0", 0.0, False)))
    small = dataclasses.replace(study, quick=SMALL, claims=claims[:1])
    monkeypatch.setattr("lowprec.study.catalogue.load", lambda name: small)
    code, out, err = command("ablate", "accumulation", "--quick", "--out", tmp_path)
    assert code == 0, err
    assert "B200 25, Hopper 13, Ada 13" in out
    folder = tmp_path / "accumulation-quick"
    figures = {f"accumulation.{ending}" for ending in ("csv", "png", "svg")}
    assert {path.name for path in folder.iterdir()} == figures | {
        "claims.csv", "report.md", "summary.json", "document.json", "report.html", "registered.json",
    }  # fmt: skip
    for path in folder.iterdir():
        assert path.name == "registered.json" or f"wrote {path}" in err
    assert (folder / "accumulation.png").read_bytes()[:4] == b"\x89PNG"
    rows = list(csv.DictReader((folder / "accumulation.csv").read_text().splitlines()))
    assert len(rows) == 2 * 5 * 2 * 2
    table = next(csv.DictReader((folder / "claims.csv").read_text().splitlines()))
    assert table["agrees"] == "yes"
    assert table["command"] == "lowprec ablate accumulation --quick"
    assert "| fraction bits of FP8 sums on B200 | DeepGEMM, issue 176 | 25 |" in (folder / "report.md").read_text()
    # As JSON and CSV, and with a figure that does not come out.
    small = dataclasses.replace(small, claims=claims)
    code, out, _ = command("ablate", "accumulation", "--quick", "--seeds", 1, "--no-plot", "--json", "--out", tmp_path)
    assert code == 1
    told = json.loads(out)
    assert [claim["agrees"] for claim in told["claims"]] == ["yes", "NO"]
    assert len(told["curves"][0]["max error / mean"]) == 1


def test_what_training_needs_is_refused(tmp_path: Path) -> None:
    for words in (("--set", "branch_steps=3"), ("--checkpoints", 2)):
        code, out, err = command("ablate", "accumulation", "--out", tmp_path, *words)
        assert (code, out) == (2, "")
        assert err == "error: accumulation trains nothing: only --quick and --seeds change its size\n"
    assert not list(tmp_path.iterdir())


def test_bad_studies_are_refused(study: TensorStudy, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="seeds=0: a whole number from 1 to 1000000000 is needed"):
        dataclasses.replace(study.quick, seeds=0)
    with pytest.raises(ValueError, match=r"lengths=\(\): one length at least is needed"):
        TensorSetting(rows=1, seeds=1, lengths=())
    with pytest.raises(ValueError, match="arms need names of their own"):
        dataclasses.replace(study, arms=(study.arms[0], study.arms[0]))
    (tmp_path / "file").write_text("")
    with pytest.raises(RuntimeError, match="cannot be written"):
        TensorKind().measure(study, SMALL, tmp_path / "file")
