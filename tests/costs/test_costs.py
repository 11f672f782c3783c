"""Costs are those that the papers print, for every input that can be given; what cannot be is refused."""

import csv
import dataclasses
import io
import itertools
import json
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusals
from tools import command

from lowprec import costs
from lowprec.codec import codecs
from lowprec.costs import Hardware, decode_limit, find_model, kv_cache_bytes, models, node_traffic, training_flops
from lowprec.moe.model.config import MoEConfig
from lowprec.moe.model.routing import route
from lowprec.registry import UnknownNameError

SLIPS = {
    "llama3.1_405b: times DeepSeek-V3's",
    "qwen2.5_72b: training GFLOPs per token, consistent formula",
    "llama3.1_405b: training GFLOPs per token, consistent formula",
}


# --- what papers print -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("item", costs.published, ids=lambda item: item.quantity)
def test_printed_numbers_come_out_but_for_the_slips(item):
    assert item.agrees == (item.quantity not in SLIPS), item.compute()
    assert bool(item.note) == (item.quantity in SLIPS)


def test_every_table_is_there():
    assert Counter(item.source for item in costs.published) == {
        "arXiv 2505.09343, table 1": 6,
        "arXiv 2505.09343, table 2": 6,
        "arXiv 2505.09343, section 2.3.2": 7,
        "arXiv 2505.09343, table 4": 8,
        "DeepEP, docs/legacy.md, low-latency kernels": 12,
    }


def test_the_slips_are_what_they_are_said_to_be():
    ratio = kv_cache_bytes("llama3.1_405b") / kv_cache_bytes("deepseek_v3")
    assert f"{ratio:.2f}" == "7.34"  # printed 7.28
    # Table 2, dense rows: 12 L h^2 + V h; with the method of the rows of experts they would be:
    assert round(training_flops("qwen2.5_72b") / 1e9, 1) == 444.9
    assert round(training_flops("llama3.1_405b") / 1e9, 1) == 2473.2
    assert round(training_flops("deepseek_v2") / 1e9, 2) == 155.01
    assert training_flops("deepseek_v2", method="paper") == training_flops("deepseek_v2")


def test_the_gates_are_not_counted():
    """With the routers' matrices among the parameters, the utilizations of table 4 miss their second digit."""
    v3 = models["deepseek_v3"]
    with_gates = training_flops(v3, causal=False) + 6 * v3.moe_layers * v3.experts * v3.dim
    wrong = 100 * costs.achieved_flops(with_gates, 272.80e9, 2048) / costs.hardware["h800_ib400"].peak_flops
    assert abs(wrong - 43.73) > 0.09


def test_parameters_are_those_of_the_released_models():
    # Sums over the tensors of the checkpoints; V3 without its multi-token prediction module.
    assert {name: models[name].parameters for name in models} == {
        "deepseek_v2": 235_741_434_880,
        "deepseek_v3": 671_026_419_200,
        "qwen2.5_72b": 72_706_203_648,
        "llama3.1_405b": 405_853_388_800,
    }
    # "236B ... 21B activated", "671B ... 37B" (arXiv 2505.09343, section 2.2.1)
    assert [math.floor(models[name].active_parameters / 1e9) for name in ("deepseek_v2", "deepseek_v3")] == [21, 37]
    assert models["qwen2.5_72b"].active_parameters == models["qwen2.5_72b"].parameters


# Combine format: bits per value, us and tokens/s with H = 7000 and plain FP8 dispatch, us and tokens/s with H = 7168
# and float32 scales in dispatch.
EXCHANGES = [
    ("bf16", 16, 120.96, 67.8, 125.15, 65.5),
    ("E5M6 + f32/128", 12.25, 102.06, 80.3, 105.80, 77.5),
    ("E5M6 + UE8M0/128", 12.0625, 101.11, 81.1, 104.83, 78.2),
    ("LogFMT-10 + 2 bf16/128", 10.25, 91.98, 89.1, 95.48, 85.8),
    ("LogFMT-10 + 2 f32/128", 10.5, 93.24, 87.9, 96.77, 84.7),
    ("LogFMT-8 + 2 bf16/128", 8.25, 81.90, 100.1, 85.16, 96.3),
    ("LogFMT-8 + 2 f32/128", 8.5, 83.16, 98.6, 86.45, 94.8),
    ("E4M3 + UE8M0/128", 8.0625, 80.95, 101.3, 84.19, 97.4),
    ("LogFMT-6 + 2 bf16/128", 6.25, 71.82, 114.1, 74.83, 109.5),
    ("NVFP4", 4.5, 63.00, 130.1, 65.80, 124.6),
    ("MXFP4", 4.25, 61.74, 132.8, 64.51, 127.1),
]


@pytest.mark.parametrize(("name", "bits", "paper_us", "paper_rate", "real_us", "real_rate"), EXCHANGES)
def test_exchanges_of_every_format(name, bits, paper_us, paper_rate, real_us, real_rate):
    for limit, time, rate in (
        (decode_limit(dispatch=8, combine=bits, dim=7000), paper_us, paper_rate),
        (decode_limit(dispatch="fp8_1x128", combine=bits), real_us, real_rate),
    ):
        assert abs(limit.all_to_all_s * 1e6 - time) < 0.006
        assert round(limit.tokens_per_s, 1) == rate


def test_the_chain_of_decoding():
    limit = decode_limit(dispatch=8, combine=16, dim=7000)
    assert limit.all_to_all_s == limit.dispatch_s + limit.combine_s
    assert limit.layer_s == 2 * limit.all_to_all_s
    assert math.isclose(limit.tpot_s, 61 * limit.layer_s)
    assert limit.combine_bytes == 2 * limit.dispatch_bytes == 2 * 32 * 9 * 7000
    experts_only = decode_limit(dispatch=8, combine=16, dim=7000, layers=58)
    assert round(experts_only.tpot_s * 1e3, 2) == 14.03
    reached = decode_limit(dispatch=8, combine=16, dim=7000, use_effective_bandwidth=True)
    assert (round(reached.tpot_s * 1e3, 2), round(reached.tokens_per_s, 1)) == (18.45, 54.2)
    slow = Hardware("slow", bandwidth=50e9, latency=10e-6)
    assert math.isclose(decode_limit(machine=slow).all_to_all_s, decode_limit().all_to_all_s + 20e-6)


def test_deepep_messages():
    size = costs.deepep_message_bytes
    assert size() == 16 + 7168 + 56 * 4 == 7408
    assert (size(codec="bf16", header=0), size(codec=10.25, header=0)) == (14336, 8960 + 224)
    # At the bandwidths of BF16, LogFMT-10 would take: (114, 195, 273, 314 us printed for BF16)
    for printed, expected in ((114, 73), (195, 125), (273, 175), (314, 201)):
        reached = costs.deepep_bandwidth(printed * 1e-6, 16, 0)
        assert round(128 * 8 * size(codec=10.25, header=0) / reached * 1e6) == expected


def test_any_codec_in_a_cache():
    assert kv_cache_bytes("deepseek_v3", "fp8_1x128") == 61 * (576 + 5 * 4)  # 576 values are four and a half tiles
    assert kv_cache_bytes("qwen2.5_72b", "fp8_1x128") == 80 * 2 * (1024 + 8 * 4)
    assert kv_cache_bytes("deepseek_v3", 4.5) == 61 * 576 * 4.5 / 8
    for name in codecs:
        step = getattr(codecs[name], "columns_multiple", 7168)
        columns = 7168 if 7168 % step == 0 else step
        assert math.isclose(costs.row_bytes(name, columns), columns * codecs[name].bits_per_value / 8)


# --- nodes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("experts", "top_k", "nodes", "kept"), [(8, 3, 4, None), (8, 3, 4, 2), (9, 4, 3, 2), (6, 1, 3, 1)]
)
def test_uniform_nodes_by_listing_every_choice(experts, top_k, nodes, kept):
    each, used = experts // nodes, kept or nodes
    choices = itertools.combinations(range(used * each), top_k)
    counts = np.bincount([len({expert // each for expert in chosen}) for chosen in choices], minlength=used + 1)
    found = costs.uniform_nodes(experts, top_k, nodes, kept)
    assert np.allclose(found.fractions, counts / counts.sum(), rtol=1e-15, atol=0)
    assert math.isclose(found.mean, np.average(np.arange(used + 1), weights=counts))


def test_uniform_mean_in_closed_form():
    for kept in (1, 4, 8):
        missed = math.comb(kept * 32 - 32, 8) / math.comb(kept * 32, 8)
        assert math.isclose(costs.uniform_nodes(256, 8, 8, kept).mean, kept * (1 - missed))


def test_measured_on_the_trainers_router():
    """Groups chosen by their best experts are all used: nearer the limit than uniform choice is."""
    shape = MoEConfig(
        "v3_routing", dim=128, layers=1, dense_layers=0, heads=1, nope_dim=64, rope_dim=32, value_dim=64, q_rank=128,
        kv_rank=128, experts=256, top_k=8, expert_groups=8, topk_groups=4, expert_width=128, dense_width=128,
    )  # fmt: skip
    logits = np.random.default_rng(0).standard_normal((4096, 256)).astype(np.float32)
    routing = route(logits, np.zeros(256, np.float32), shape, sequence=4096)
    limited = costs.measured_nodes(routing.chosen, 256, 8)
    assert limited.max == 4
    assert abs(limited.mean - 3.967) < 0.01  # against 3.629 for a uniform choice among four nodes
    free = np.argsort(-logits, axis=1)[:, :8]
    assert abs(costs.measured_nodes(free, 256, 8).mean - costs.uniform_nodes(256, 8, 8).mean) < 0.03


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_measured_nodes_are_distinct_nodes(data):
    nodes, each = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
    chosen = st.lists(st.integers(-1, nodes * each - 1), min_size=3, max_size=3)
    rows = data.draw(st.lists(chosen, min_size=1, max_size=9))
    found = costs.measured_nodes(rows, nodes * each, nodes)
    expected = [len({e // each for e in row if e >= 0}) for row in rows]
    assert math.isclose(found.mean, sum(expected) / len(rows), abs_tol=1e-12)
    assert found.max == max(expected)
    assert math.isclose(sum(found.fractions), 1)


def test_traffic_between_nodes():
    four, eight = (node_traffic(codec=8, nodes_per_token=m, tokens=1) for m in (4, 8))
    assert (four.scale_out_bytes, eight.scale_out_bytes) == (4 * 7168, 8 * 7168)  # M t and 8 t of section 4.3
    assert four.scale_up_bytes == eight.scale_up_bytes == 8 * 7168
    assert four.seconds == four.scale_out_s == 4 * 7168 / 40e9
    assert four.scale_up_s == 8 * 7168 / 160e9
    assert node_traffic(codec=8, nodes_per_token=1, tokens=1).seconds == four.scale_up_s
    assert (
        node_traffic(codec=8, nodes_per_token=8, tokens=1, use_effective_bandwidth=False).scale_out_s == 8 * 7168 / 50e9
    )


# --- what users give -------------------------------------------------------------------------------------------------

TOML = """
dim = 1024
layers = 24
vocabulary = 32000
dense_width = 2816
[attention]
kind = "grouped"
heads = 16
kv_heads = 4
head_dim = 64
"""


def test_models_and_machines_from_files(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(TOML)
    mine = find_model(str(path))
    assert (mine.name, mine.moe_layers, mine.experts_per_token) == ("mine", 0, 0)
    assert mine.parameters == 24 * (1024 * 64 * 40 + 3 * 1024 * 2816 + 2 * 1024) + 1024 + 2 * 1024 * 32000
    assert kv_cache_bytes(mine) == 24 * 2 * 4 * 64 * 2
    machine = tmp_path / "box.toml"
    machine.write_text("bandwidth = 1e9\n")
    box = costs.find_hardware(str(machine))
    assert (box.name, box.effective_bandwidth, box.effective_scale_up_bandwidth) == ("box", 1e9, 1e9)
    rows = json.loads(command("costs", "--model", path, "--model", "deepseek_v3", "--json"))
    assert [row["model"] for row in rows] == ["mine", "deepseek_v3"]
    latent = dict(kind="latent", heads=1, q_rank=4, kv_rank=4, nope_dim=4, rope_dim=2, value_dim=4)
    same = {"name": "same", "dim": 8, "layers": 1, "vocabulary": 2, "dense_width": 8, "attention": latent}
    assert find_model(same).attention.kv_widths == (6,)


BROKEN_MODELS = [
    (TOML + "width = 3", "unknown key 'width'"),
    (TOML.replace('kind = "grouped"', 'kind = "mqa"'), "kind of attention must be one of latent, grouped, got 'mqa'"),
    (TOML.replace("kv_heads = 4", "kv_heads = 3"), "kv_heads must divide heads=16, got 3"),
    (TOML.replace("head_dim = 64", ""), "data must have 'head_dim', got heads, kv_heads"),
    (TOML.replace("layers = 24", "layers = 0"), "layers must be an integer >= 1, got 0"),
    (TOML.replace("dim = 1024", "dim = 1024.5", 1), "dim must be an integer >= 1, got 1024.5"),
    (TOML.replace("dense_width = 2816", "dense_width = 0"), "dense_width must be > 0 with 24 dense layers, got 0"),
    (
        TOML.replace("dense_width = 2816", "dense_width = 2816\nexperts = 8"),
        "expert_width must be > 0 and top_k from 1 to experts",
    ),
    (TOML.replace("dense_width = 2816", "dense_layers = 25"), "dense_layers must be at most layers=24, got 25"),
    ("dim = [", "not a TOML file"),
    ("dim = 4", "data must have 'layers', 'vocabulary', 'attention'"),
]


@pytest.mark.parametrize(("text", "message"), BROKEN_MODELS, ids=[message for _, message in BROKEN_MODELS])
def test_impossible_models(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        find_model(str(path))
    assert message.split(":")[0] in command("costs", "--model", path, code=2)


def box(**fields):
    return Hardware(**{"name": "x", "bandwidth": 1e9, **fields})


FIELDS = ("bandwidth", "effective_bandwidth", "scale_up_bandwidth", "peak_flops", "latency")
test_refused = refusals(
    [
        *(
            (f"box({x}={bad})", f"{x} must be a finite number")
            for x in FIELDS
            for bad in ("-1.0", "math.nan", "math.inf", "'fast'", "True")
        ),
        ("box(bandwidth=0.0)", "hardware 'x': bandwidth must be a finite number > 0, got 0.0"),
        (
            "box(effective_bandwidth=2e9)",
            r"hardware 'x': effective_bandwidth must be at most bandwidth=1e\+09, got 2e\+09",
        ),
        ("box(gpus_per_node=0)", "hardware 'x': gpus_per_node must be an integer >= 1, got 0"),
        ("box(name='')", "hardware: name must be a non-empty string, got ''"),
        ("Hardware.from_dict({'name': 'x', 'bandwith': 1e9})", "unknown key 'bandwith': did you mean 'bandwidth'"),
        ("Hardware.from_dict([1])", TypeError, r"hardware: data must be a mapping of fields, got \[1\]"),
        (
            "ModelShape('x', dim=4, layers=1, vocabulary=4, attention='mla', dense_width=4)",
            TypeError,
            "model 'x': attention must be a LatentAttention or a GroupedAttention, got 'mla'",
        ),
        (
            "dataclasses.replace(models['deepseek_v3'], experts=0, top_k=0)",
            "expert_width must be > 0 and top_k from 1 to experts with 58 layers of experts, got",
        ),
        *((f"decode_limit(combine={bad})", "bits per value") for bad in ("0", "-8", "math.nan", "math.inf")),
        *(
            (f"decode_limit({keyword}=0)", f"{keyword} must be an integer >= 1, got 0")
            for keyword in ("tokens", "dim", "layers")
        ),
        ("decode_limit('qwen2.5_72b')", "decode_limit: model must have experts, got 'qwen2.5_72b' without"),
        (
            "node_traffic('qwen2.5_72b', nodes_per_token=1)",
            "node_traffic: model must have experts, got 'qwen2.5_72b' without",
        ),
        (
            "node_traffic(nodes_per_token=9)",
            "node_traffic: nodes_per_token must be at most deepseek_v3's top_k=8, got 9",
        ),
        ("training_flops('deepseek_v3', 0)", "training_flops: sequence must be an integer >= 1, got 0"),
        (
            "training_flops('deepseek_v3', method='guess')",
            "training_flops: method must be 'consistent' or 'paper', got 'guess'",
        ),
        ("achieved_flops(1e9, 1e9, 0)", "achieved_flops: gpus must be an integer >= 1, got 0"),
        *(
            (f"measured_nodes({chosen}, 8, 2)", r"chosen must be integers of shape \[tokens, top_k\], not empty, got")
            for chosen in ("[]", "[[]]", "[[0.5]]", "[1, 2]")
        ),
        ("measured_nodes([[8]], 8, 2)", "measured_nodes: chosen must be below experts=8, got 8"),
        ("measured_nodes([[0]], 8, 3)", "must divide"),
        ("uniform_nodes(8, 3, 3)", "nodes must divide experts"),
        ("uniform_nodes(8, 3, 4, kept=1)", "hold top_k"),
        ("find_model('deepseek_v4')", UnknownNameError, "unknown model 'deepseek_v4': did you mean"),
        ("find_hardware('h100')", UnknownNameError, "unknown hardware 'h100'"),
        ("bits_per_value('fp7')", UnknownNameError, "unknown codec 'fp7'"),
    ],
    lambda: {**vars(costs), "box": box, "math": math, "dataclasses": dataclasses},
)


@pytest.mark.parametrize(
    "arguments",
    [
        "--model gpt", "--model no.toml", "all-to-all --hardware abacus", "all-to-all --combine-codec fp7",
        "all-to-all --combine-codec -3", "all-to-all --combine-codec nan", "--kv-codec fp7", "--sequence 0",
        "all-to-all --model qwen2.5_72b", "nodes --model qwen2.5_72b",
        "all-to-all --tokens -1", "all-to-all --model deepseek_v2 --model deepseek_v3", "--json --csv",
    ],
)  # fmt: skip
def test_mistakes_are_one_line(arguments):
    command("costs", *arguments.split(), code=2)


def test_the_command():
    rows = list(csv.DictReader(io.StringIO(command("costs", "--csv"))))
    assert [row["kv_bytes_per_token"] for row in rows] == ["69120", "70272", "327680", "516096"]
    combine = ("--combine-codec", 16, "--combine-codec", "logfmt10")
    first, second = json.loads(command("costs", "all-to-all", "--dispatch-codec", 8, "--dim", 7000, *combine, "--json"))
    assert [round(row["all_to_all_us"], 2) for row in (first, second)] == [120.96, 91.98]
    assert first["speedup_over_bf16"] == 1
    rows = json.loads(command("costs", "nodes", "--json"))
    assert [round(row["nodes_per_token"], 2) for row in rows] == [8, 5.29, 4, 3.63]
    assert command("costs", "published").count("NO") == len(SLIPS)
    out = command("costs", "all-to-all")
    assert all(name in out for name in codecs)


def test_the_list_of_codecs():
    rows = {row["codec"]: row for row in json.loads(command("codecs", "--json"))}
    assert list(rows) == codecs.names()
    assert (rows["bf16"]["bytes_per_row"], rows["logfmt10"]["bytes_per_row"]) == (14336, 9184)
    assert rows["logfmt10"]["bits_per_value"] == 10.25
    assert all(row["description"] for row in rows.values())
    command("codecs", "--columns", "0", code=2)
