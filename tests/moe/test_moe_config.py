"""Configurations: the published table, impossible ones, TOML files, and what a recipe's tiles ask of them."""

import dataclasses
import functools
import math

import numpy as np
import pytest
from refusals import refusals
from tools import command

import lowprec as lp
from lowprec.moe.model.config import MoEConfig, ParameterCounts, configs
from lowprec.moe.model.config_file import check_tiles, get_config, load_config
from lowprec.moe.model.model import Model
from lowprec.registry import UnknownNameError


@pytest.mark.parametrize(("name", "exact", "millions", "share"), [
    ("nano", (1_433_216, 843_392, 774_144), ("1.43", "0.84", "0.77"), "91.8"),
    ("pilot", (1_822_464, 1_232_640, 1_097_728), ("1.82", "1.23", "1.10"), "89.1"),
    ("tiny", (6_667_520, 3_128_576, 2_981_888), ("6.67", "3.13", "2.98"), "95.3"),
    ("small", (28_650_624, 8_006_784, 7_741_440), ("28.65", "8.01", "7.74"), "96.7"),
])  # fmt: skip
def test_parameter_counts(name, exact, millions, share):
    counts = configs[name].parameter_counts()
    assert counts == ParameterCounts(*exact)
    assert tuple(f"{count / 1e6:.2f}" for count in exact) == millions
    assert f"{100 * counts.active_linear / counts.active:.1f}" == share


def test_a_step_is_2048_bytes_and_one_output_is_in_part_of_a_tile():
    assert {configs[name].batch * configs[name].sequence for name in configs} == {2048}
    assert {configs[name].parameter_shapes()["layers.0.attn.wkv_a"][0] for name in configs} == {160}


def test_parameter_names_say_their_place():
    shapes = configs["nano"].parameter_shapes()
    assert list(shapes)[:3] == ["embed", "layers.0.attn_norm", "layers.0.attn.wq_a"]
    assert list(shapes)[-2:] == ["norm", "head"]
    dense, experts = ([name for name in shapes if name.startswith(f"layers.{i}.ffn.")] for i in (0, 2))
    assert dense == ["layers.0.ffn.w1", "layers.0.ffn.w3", "layers.0.ffn.w2"]
    assert len(experts) == 1 + 3 + 8 * 3
    assert shapes["layers.2.ffn.gate"] == (8, 128)


def test_no_shared_expert_is_allowed():
    config = dataclasses.replace(configs["nano"], shared_experts=0)
    assert not [name for name in config.parameter_shapes() if "shared" in name]
    assert config.parameter_counts().total == 1_433_216 - 2 * 3 * 128 * 128


def test_initial_standard_deviation_is_the_original_one_scaled_by_width():
    config = dataclasses.replace(configs["nano"], dim=7168)
    assert math.isclose(config.init_std, 0.006, rel_tol=1e-3)


test_refused = refusals([
    ("nano(dim=0)", r"MoEConfig 'nano': dim must be an integer >= 1, got 0"),
    ("nano(dense_layers=-1)", r"dense_layers must be an integer >= 0, got -1"),
    ("nano(dense_layers=4)", "MoEConfig 'nano': dense_layers must be at most layers=3, got 4"),
    ("nano(rope_dim=5)", "MoEConfig 'nano': rope_dim must be even, got 5"),
    ("nano(vocabulary=257)", "MoEConfig 'nano': vocabulary must be at most 256, as tokens are bytes, got 257"),
    ("nano(expert_groups=3)", "MoEConfig 'nano': expert_groups must divide experts=8, got 3"),
    ("nano(topk_groups=3)", "MoEConfig 'nano': topk_groups must be at most expert_groups=2, got 3"),
    ("nano(top_k=3, topk_groups=2)", "top_k must be a multiple of topk_groups=2, as each is scored by its best"),
    ("nano(top_k=5)", "top_k must be at most topk_groups=1 times the 4 experts of a group, got 5"),
    ("nano(rope_theta=np.inf)", "MoEConfig 'nano': rope_theta must be a finite number >= 0, got inf"),
    ("lp.configs['pliot']", UnknownNameError, "unknown model configuration 'pliot': did you mean 'pilot'"),
], lambda: {"nano": functools.partial(dataclasses.replace, configs["nano"])})  # fmt: skip


def test_an_own_configuration_needs_no_registration():
    assert configs.get(MoEConfig(**dataclasses.asdict(configs["tiny"]) | {"name": "mine"})).name == "mine"


# --- files ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def written(tmp_path):
    """Return what writes a file of some text and returns its path."""

    def write(text):
        (tmp_path / "mine.toml").write_text(text)
        return tmp_path / "mine.toml"

    return write


def toml(config):
    words = {True: "true", False: "false"}
    values = dataclasses.asdict(config).items()
    return "".join(f"{k} = {words[v] if isinstance(v, bool) else repr(v)}\n" for k, v in values)


@pytest.mark.parametrize("name", configs.names())
def test_a_file_of_all_fields_is_that_configuration(written, name):
    assert load_config(written(toml(configs[name]))) == configs[name]


def test_a_base_supplies_what_is_not_given(written):
    path = written('base = "tiny"\nlayers = 2\nroute_scale = 2\n')
    assert load_config(path) == dataclasses.replace(configs["tiny"], name="mine", layers=2, route_scale=2)
    assert get_config(path) == get_config(str(path)) == load_config(path)
    assert get_config("tiny") is configs["tiny"] is get_config(configs["tiny"])
    assert Model(path, "bf16").config.layers == 2


@pytest.mark.parametrize(("text", "message"), [
    ("dim = ", r"is not TOML: Invalid value \(at end of document\)"),
    ("base = 3", "base must be the name of a configuration, got 3"),
    ('base = "tini"', "did you mean 'tiny'"),
    ('base = "tiny"\nlayer = 2', r"unknown field 'layer': did you mean 'layers' or 'dense_layers'\?"),
    ('base = "tiny"\nzzz = 2', r"unknown field 'zzz': expected one of base, name, dim, "),
    ("dim = 128\nlayers = 1", "has no dense_layers, heads, nope_dim, rope_dim, value_dim, q_rank, kv_rank,"),
    ('base = "tiny"\ndim = 1.5', r"mine\.toml'.* dim must be an integer >= 1, got 1\.5"),
    ('base = "tiny"\ndim = "wide"', r"dim must be an integer >= 1, got 'wide'"),
    ('base = "tiny"\nroute_scale = true', "MoEConfig 'mine': route_scale must be a finite number >= 0, got True"),
    ('base = "tiny"\nallow_partial_tiles = 2', r"allow_partial_tiles must be True or False, got 2"),
    ('base = "tiny"\nname = ""', "MoEConfig: name must be a non-empty string, got ''"),
    ('base = "tiny"\nmtp_depth = 2', "MoEConfig 'mine': mtp_depth must be 0 or 1, got 2"),
])  # fmt: skip
def test_a_wrong_file_is_quoted(written, tmp_path, text, message):
    with pytest.raises(KeyError if "did you mean 'tiny'" in message else ValueError, match=message):
        load_config(written(text))
    with pytest.raises(FileNotFoundError):
        get_config(tmp_path / "none.toml")


@pytest.mark.slow
def test_the_command_line_takes_a_file(written):
    path = written('base = "nano"\nbatch = 2\nlayers = 1\ndense_layers = 0\n')
    out = command("train", "--config", path, "--steps", 1, "--csv")
    assert out.splitlines()[1].startswith("mine,bf16,1,0,")


@pytest.mark.parametrize(("change", "layer"), [
    ({"dim": 200}, "200 inputs of layers.0.attn.wq_a"),
    ({"q_rank": 100}, "100 inputs of layers.0.attn.wq_b"),
    ({"kv_rank": 130}, "130 inputs of layers.0.attn.wkv_b"),
    ({"value_dim": 63}, "126 inputs of layers.0.attn.wo"),
    ({"expert_width": 64}, "64 inputs of layers.1.ffn.shared.w2"),
    ({"dense_width": 385}, "385 inputs of layers.0.ffn.w2"),
])  # fmt: skip
def test_inputs_in_part_of_a_tile_are_refused_unless_meant(change, layer):
    config = dataclasses.replace(configs["nano"], **change)
    count, name = layer.split(" inputs of ")
    with pytest.raises(ValueError, match=f"inputs of {name} must be a multiple of 128 .*, got {count}; or set"):
        Model(config, "dsv3")
    check_tiles(config, lp.recipes["bf16"])
    check_tiles(dataclasses.replace(config, allow_partial_tiles=True), lp.recipes["dsv3"])


@pytest.mark.parametrize("name", configs.names())
def test_the_catalogue_suits_every_recipe(name):
    for recipe in lp.recipes.names():
        check_tiles(dataclasses.replace(configs[name], mtp_depth=1), lp.recipes[recipe])


def test_parameters_for_a_byte_further_are_counted_apart():
    config = dataclasses.replace(configs["nano"], mtp_depth=1)
    counts, shapes = config.parameter_counts(), config.parameter_shapes()
    assert dataclasses.replace(counts, mtp=0) == configs["nano"].parameter_counts()
    block = sum(int(np.prod(s)) for n, s in shapes.items() if n.startswith("layers.2."))
    assert counts.mtp == block + 3 * 128 + 128 * 256  # a block of experts, three norms, the projection
    assert shapes["layers.3.projection"] == (128, 256)
    assert list(configs["nano"].parameter_shapes()) == [name for name in shapes if not name.startswith("layers.3.")]
    dense = dataclasses.replace(config, dense_layers=3)  # has a block of experts all the same
    assert [name for name in dense.parameter_shapes() if name.endswith(".gate")] == ["layers.3.ffn.gate"]
