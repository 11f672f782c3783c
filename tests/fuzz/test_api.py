"""A fuzzer over the public API: the promises of `judge` hold for whatever is passed."""

import os

import calls
import judge
import pytest
from targets import Anywhere, targets

import lowprec as lp
from lowprec import codec, costs, logfmt

CALLS = {"short": 6_000, "long": 1_000_000}
#: Public, and called through something else: catalogues by `get`, modules by their functions, results by their makers.
NOT_CALLED = {"__version__", "codecs", "configs", "formats", "gemm_libraries", "policies", "quantizers", "recipes",
              "roundings", "accumulators", "costs", "logfmt", "metrics", "Checksum", "Check",
              "streams", "block_formats", "Accumulator", "attentions", "AttentionKernel", "orders",
              "collectives",
              "norms", "Norm", "stacks", "Side"}  # fmt: skip
#: Public, and not for fuzzing: the slow truth takes exact numbers of those who test against it, and checks little; what
#: test suites import fails with an AssertionError on purpose; `expect` trains a model.
TRUSTED = {"oracle", "plot", "testing", "expect"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("files")
    calls.write_files(found)
    return found


@pytest.fixture(scope="module")
def all_targets(folder):
    return {target.name: target for target in targets(folder)}


@pytest.fixture
def alone(little_room, monkeypatch, keep_threads):
    """Stand in an empty folder."""
    (little_room / "here").mkdir()
    monkeypatch.chdir(little_room / "here")
    return little_room


def test_everything_public_is_called(all_targets):
    called = {name.split(".")[0] for name in all_targets}
    assert set(lp.__all__) - called - NOT_CALLED - TRUSTED == set()
    for module, short, results in ((costs, "costs", {"DecodeLimit", "NodeTraffic", "PublishedFigure"}),
                                   (codec, "codec", {"CastPayload", "Codec", "EncodedTensor", "DecodeError"}),
                                   (logfmt, "logfmt", {"DeepEPMessage", "LogFMT", "ApproxTables"})):  # fmt: skip
        functions = {name for name in module.__all__ if callable(getattr(module, name))}
        assert functions - {name.removeprefix(f"{short}.") for name in all_targets} <= results


def test_every_parameter_has_a_kind(all_targets):
    """What a signature says is enough to be hostile to it: few parameters are only "some object"."""
    objects = {
        f"{target.name}({name})"
        for target in all_targets.values()
        for name, parameter in target.parameters.items()
        if calls.kind_of(target, parameter) == "object"
    }
    assert objects <= OBJECTS, sorted(objects - OBJECTS)


#: Matrices with scales, objects of the package, callables, tuples: what no catalogue and no number stands for.
OBJECTS = {
    "FusedSum(input_formats)", "GemmLibrary(stream_k)", "Granularity.block(shape)", "Policy(always_saturate)",
    "attention(descale)", "attention(like)", "attention(progress)", "attention(window)", "attention_grad(window)",
    "attention_tolerance(window)", "identify_attention(descale)", "identify_attention(window)",
    "sum_tolerance(order)",
    "tolerance(a)", "tolerance(b)",
    "Quantizer(rule)", "Quantized(tensor_scale)", "Quantized.dequantize(like)",
    "Recipe(all_reduce)", "Recipe(master_weights)", "Recipe(moment_m)", "Recipe(moment_v)",
    "Recipe(rules)", "Recipe(storage)", "TableFormat(table)", "checksum(a)", "checksum(b)", "codec.from_bytes(shape)",
    "costs.ModelShape(attention)", "costs.NodesPerToken(fractions)", "decode(like)", "encode(like)", "gemm(a)",
    "gemm(b)", "gemm(like)", "grouped_gemm(a)", "grouped_gemm(b)", "grouped_wgrad(dy)", "grouped_wgrad(x)",
    "Order(steps)", "Order(step_formats)", "reveal(function)",
    "identify(a)", "identify(b)", "logfmt.encode(approx_tables)", "logfmt.from_bytes(approx_tables)",
    "matmul_f32(like)", "mma(like)",
    "prepack_b(q)", "quantize(out)", "quantize_dequantize(like)", "round_to(like)", "train(on_stage)",
    "train(on_step)", "train(recompute)",
}  # fmt: skip


def share(target, every, budget):
    """Return how many of all calls a target gets: cheap ones get more of them than dear ones."""
    every = {t.name: t.weight / t.milliseconds for t in every}
    return max(1, round(budget * every[target.name] / sum(every.values())))


def run(target, number, folder, alone):
    """Make calls of one target and return what became of them; the first that breaks a promise ends it."""
    seen = {"result": 0, "complaint": 0}
    files = judge.listing(alone, folder)
    for i in range(number):
        seen[judge.judge(target, f"{target.name} {i}", folder)] += 1
        if i % 50 == 0 or i == number - 1:
            assert judge.listing(alone, folder) == files, f"{target.name}: files were written up to call {i}"
    return seen


NAMES = [target.name for target in targets(Anywhere())]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", NAMES)
def test_calls(name, all_targets, folder, alone):
    number = share(all_targets[name], all_targets.values(), CALLS["short"])
    seen = run(all_targets[name], number, folder, alone)
    assert seen["result"] or number < 20 or all_targets[name].always_hostile, f"no call of {number} was sound: {seen}"


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NAMES)
def test_many_calls(name, all_targets, folder, alone):
    budget = int(os.environ.get("LOWPREC_FUZZ_CALLS", CALLS["long"]))
    run(all_targets[name], share(all_targets[name], all_targets.values(), budget), folder, alone)
