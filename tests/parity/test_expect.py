"""The difference of log-probabilities to expect: parts, grids, verdicts, and equal sides."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

import lowprec as lp
from lowprec.cli.app import cli
from lowprec.moe.data.sources import load_corpus
from lowprec.moe.run.schedule import Schedule
from lowprec.moe.run.trainer import Trainer
from lowprec.parity.expect import trained_miniature
from lowprec.parity.side import OPTIONS

OPERANDS = "operands (formats, scales)"


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    text = tmp_path_factory.mktemp("corpus") / "noise"
    text.write_bytes(np.random.default_rng(0).bytes(1 << 18))
    corpus = load_corpus(text)
    made = Trainer("nano", "bf16", corpus, seed=0, schedule=Schedule(1e-3, 0, 9))
    for gain in (array for array in made.model.params.values() if array.ndim == 1):
        gain *= np.random.default_rng(gain.size).uniform(0.8, 1.2, gain.size)  # gains of 1 hide how norms round
    return made


@pytest.fixture
def expected(trainer):
    def run(a, b, **options):
        return lp.expect(a, b, trainer=trainer, tokens=trainer.corpus.held_out[None, :33], **options)

    return run


def test_equal_sides_differ_in_nothing(expected):
    found = expected("dsv3", lp.Side.of("dsv3"), measured=0.1)
    assert found.parts == ()
    assert not found.log_ratio.any()
    assert not found.kl.any()
    assert found.verdict.startswith("these sides make no difference here")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"kv": "fp8_1x128"}, "KV cache"), ({"head": "float32"}, "head"), ({"router": "float32"}, "router"),
        ({"attention": "fa3_fp8"}, "attention"), ({"combine": "fp8_1x128"}, "dispatch, combine"),
        ({"norm": "vllm_rms_norm_16"}, "norms"), ({"log_softmax": "bfloat16"}, "log-softmax"),
        ({"recipe": lp.recipes["bf16"].with_(injected_error="gain=0.01")}, "accumulator"),
    ],
)  # fmt: skip
def test_a_change_is_its_own_part(expected, options, part):
    """Alone, it is the whole difference; with it left out, nothing is left."""
    found = expected("bf16", lp.Side.of(**{"recipe": "bf16", **options}))
    (row,) = found.parts
    assert row.name == part
    assert row.kl_alone == row.kl_reduction == found.mean > 0


@pytest.mark.slow
def test_recipes_differ_in_operands_accumulators_and_transfers(expected):
    found = expected("bf16", "dsv3")
    assert [part.name for part in found.parts] == [OPERANDS, "accumulator", "dispatch, combine"]
    assert np.isnan(found.parts[1].kl_alone)  # FP8 tensor cores take no BF16 operands
    assert found.parts[0].kl_alone > 0.5 * found.mean > 10 * found.noise_floor > 0
    assert expected("bf16", "dsv3", measured=found.difference).verdict.endswith(f"; most comes from {OPERANDS}")
    reverse = expected("dsv3", "bf16", contributions=False)
    assert np.isnan(reverse.noise_floor)  # only its layers in BF16 have another order
    assert "floor         unknown" in str(reverse)


@pytest.mark.slow
def test_differences_of_rounded_logits_grow_with_their_step(expected):
    """Logits of size 16 to 32 step by 0.125 in BF16; float32 hides none of this."""
    a, b = (lp.Side.of("bf16", head=head) for head in ("float32", "bfloat16"))
    small, large = (expected(a, b, logit_size=size) for size in (1.5, 24.0))
    assert [grid.step for grid in large.grids] == [2.0**-19, 0.125]
    assert large.difference > 8 * small.difference
    assert large.difference == pytest.approx(0.125 / 4, rel=0.3)  # uniform errors up to half a step


@pytest.mark.ci
def test_a_larger_measured_difference_names_what_would_make_it(expected):
    cache = expected("bf16", lp.Side.of("bf16", kv="fp8_1x128"))
    found = expected("bf16", lp.Side.of("bf16", combine="fp8_1x128"), measured=cache.difference)
    assert found.measured > 2 * found.difference
    assert dict(found.candidates)["kv=fp8_1x128"] > 0.5 * cache.difference
    assert "look at kv=fp8_1x128" in found.verdict
    near = [name for name, mean in found.candidates if 0.5 <= mean / found.measured <= 2]
    assert found.verdict.endswith(f"look at {' or '.join(near)}")
    assert len(near) < len(found.candidates)
    for rollout in ("dsv3", lp.Side.of("bf16", head="float32")):  # the latter with head=bfloat16 is the trainer
        assert "none comes near yours" in expected("bf16", rollout, measured=9.0).verdict
    assert (
        "as these sides make it" in expected("bf16", "dsv3", measured=1.2 * expected("bf16", "dsv3").difference).verdict
    )


@pytest.mark.parametrize(
    ("parts", "options", "message"),
    [
        ({"head": "e8m0fnu"}, {}, "expect: logits must be finite in e8m0fnu"),
        ({"log_softmax": "e8m0fnu"}, {}, "expect: log-probabilities must be finite in e8m0fnu"),
        (
            {},
            {"logit_size": 1e6},
            "logit_size must be where bfloat16 steps by at most .*, got 1e.06, where it steps by 4",
        ),
        ({}, {"tokens": np.zeros(9, np.uint8)}, r"expect: tokens must have shape .*, got \(9,\)"),
        ({}, {"tokens": np.zeros((0, 9), np.uint8)}, r"expect: tokens must have shape .*, got \(0, 9\)"),
        ({"norm": "torch_cpu_log_softmax_16"}, {}, "expect: norm must be an RMSNorm, got torch_cpu_log_softmax_16"),
        ({"norm": "torch_cpu_layer_norm"}, {}, "expect: norm must be an RMSNorm, got torch_cpu_layer_norm"),
    ],
)
def test_what_cannot_be_computed_is_an_error(trainer, parts, options, message):
    tokens = {"tokens": trainer.corpus.held_out[None, :9]}
    with pytest.raises(ValueError, match=message):
        lp.expect("bf16", lp.Side.of("bf16", **parts), trainer=trainer, **tokens | options)


def test_none_changes_nothing():
    plain = lp.Side.of("dsv3")
    side = lp.Side.of("dsv3", **dict.fromkeys(OPTIONS))
    assert (side.name, side) == ("dsv3", plain)


def test_ties_of_log_probabilities_are_no_flips(expected):
    found = expected("bf16", lp.Side.of("bf16", log_softmax="e5m2"), contributions=False)
    assert found.mean > 0
    assert found.flips == 0


@pytest.mark.ci
def test_progress_ends_at_its_total(expected):
    """Accumulators that refuse an operand are no passes; candidates are."""
    calls = []
    expected("bf16", "dsv3", measured=9.0, progress=lambda *numbers: calls.append(numbers))
    assert [done for done, _ in calls] == list(range(1, len(calls) + 1))
    assert all(done <= total for done, total in calls)
    assert calls[-1][0] == calls[-1][1]


@pytest.mark.ci
def test_a_trained_model_survives_a_cut_file_and_a_missing_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("lowprec._jit.cache_folder", tmp_path)
    monkeypatch.setattr("lowprec.parity.expect._STEPS", 1)
    monkeypatch.setattr(Trainer, "step", lambda trainer: None)
    trained_miniature()
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:1000])
    trained_miniature()
    assert file.read_bytes() == whole
    monkeypatch.setattr("lowprec._jit.cache_folder", tmp_path / "none")
    assert trained_miniature().steps == 0


def test_by_probability_counts_every_token(expected):
    found = expected("bf16", "dsv3", contributions=False)
    rows = found.by_probability()
    assert sum(count for _, count, _ in rows) == found.kl.size == 32
    assert np.nansum([count * mean for _, count, mean in rows if count]) / 32 == pytest.approx(found.difference)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bf16", "te_delayed"), "must not use delayed scaling, as scales have a history, got te_delayed"),
        (("float64", "bf16"), "expect: recipe must store bfloat16 or float32, got float64"),
        (("bf16", "bf16", "--logit-size", "nan"), "expect: logit_size must be"),
        (("bf16", "bf16", "--measured", "inf"), "expect: measured must be"),
        (("bf16", "bf16", "--measured", "0"), "--measured must be >0, got 0.0"),
        (("bf16", "dsv9"), "unknown recipe 'dsv9'"),
        (("bf16", "dsv3", "--kv", "fp9"), "unknown codec 'fp9'"),
        (("bf16", "dsv3", "--head", "bf99"), "unknown format 'bf99'"),
        (("bf16", "dsv3", "--norm", "rms"), "unknown norm 'rms'"),
    ],
)  # fmt: skip
def test_messages(arguments, message):
    found = CliRunner().invoke(cli, ["expect", *arguments])
    assert found.exit_code == 2
    assert message in found.output
    assert len(found.output.strip().splitlines()) == 1


@pytest.mark.ci
def test_command(trainer, tmp_path, monkeypatch):
    monkeypatch.setattr("lowprec.parity.expect.TOKENS", 128)
    trainer.save(tmp_path / "checkpoint.npz")
    words = ["expect", "bf16", "bf16", "--head", "float32,bfloat16", "--checkpoint", str(tmp_path / "checkpoint.npz")]
    found = CliRunner().invoke(cli, [*words, "--measured", "1"])
    assert found.exit_code == 0, found.output
    assert "bf16 head=float32 (train) against bf16 head=bfloat16 (rollout), 128 tokens" in found.output
    assert "none comes near yours" in found.output
    rows = json.loads(CliRunner().invoke(cli, [*words, "--json"]).stdout)
    assert {row["name"]: row["value"] for row in rows}["step of the trainer's logits"] < 1e-6
