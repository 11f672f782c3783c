"""Configurations from TOML files, their errors, and what a recipe's tiles ask of a configuration."""

import dataclasses

import numpy as np
import pytest
from click.testing import CliRunner

import lowprec as lp
from lowprec.cli.app import cli
from lowprec.moe.model.config import MoEConfig, configs
from lowprec.moe.model.config_file import check_tiles, get_config, load_config
from lowprec.moe.model.model import Model


def written(tmp_path, text, name="mine.toml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def toml(config):
    words = {True: "true", False: "false"}
    values = dataclasses.asdict(config).items()
    return "".join(f"{k} = {words[v] if isinstance(v, bool) else repr(v)}\n" for k, v in values)


@pytest.mark.parametrize("name", configs.names())
def test_a_file_of_all_fields_is_that_configuration(tmp_path, name):
    assert load_config(written(tmp_path, toml(configs[name]))) == configs[name]


def test_a_base_supplies_what_is_not_given(tmp_path):
    path = written(tmp_path, 'base = "tiny"\nlayers = 2\nroute_scale = 2\n')
    assert load_config(path) == dataclasses.replace(configs["tiny"], name="mine", layers=2, route_scale=2)
    assert lp.load_config is load_config
    assert get_config(path) == get_config(str(path)) == load_config(path)
    assert get_config("tiny") is configs["tiny"] is get_config(configs["tiny"])
    assert Model(path, "bf16").config.layers == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dim = ", r"mine\.toml' is no TOML: "),
        ("base = 3", r"base = 3: the name of a configuration is needed"),
        ('base = "tiny"\nlayer = 2', r"unknown field 'layer': did you mean 'layers'\?"),
        ('base = "tiny"\nzzz = 2', r"unknown field 'zzz': known are base, name, dim, "),
        ("dim = 128\nlayers = 1", r"dense_layers, heads, .* missing; base = \"tiny\" would supply them"),
        ('base = "tiny"\ndim = 1.5', r"mine\.toml'.* dim=1\.5: a whole number >= 1"),
        ('base = "tiny"\ndim = "wide"', r"dim='wide': a whole number >= 1"),
        ('base = "tiny"\nroute_scale = true', r"route_scale=True: a finite number >= 0"),
        ('base = "tiny"\nragged_inputs = 2', r"ragged_inputs=2: True or False is needed"),
        ('base = "tiny"\nname = ""', r"name='': some text is needed"),
        ('base = "tiny"\nmtp_depth = 2', r"mtp_depth=2: 0 or 1"),
    ],
)
def test_a_wrong_file_is_quoted(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        load_config(written(tmp_path, text))


def test_an_unknown_base_gets_the_close_one(tmp_path):
    with pytest.raises(KeyError, match="did you mean 'tiny'"):
        load_config(written(tmp_path, 'base = "tini"'))


def test_a_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        get_config(tmp_path / "none.toml")


@pytest.mark.slow
def test_the_command_line_takes_a_file(tmp_path):
    path = written(tmp_path, 'base = "nano"\nbatch = 2\nlayers = 1\ndense_layers = 0\n')
    done = CliRunner().invoke(cli, ["train", "--config", str(path), "--steps", "1", "--csv"])
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[1].startswith("mine,bf16,1,0,")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dim =", "mine.toml' is no TOML"),
        ('base = "nano"\nkv_rank = 100', "the 100 inputs of layers.0.attn.wkv_b are not whole tiles"),
        (None, "none.toml: No such file"),
    ],
)
def test_the_command_line_refuses_in_one_line(tmp_path, text, message):
    path = tmp_path / "none.toml" if text is None else written(tmp_path, text)
    done = CliRunner().invoke(cli, ["train", "--config", str(path), "--recipe", "dsv3", "--steps", "1"])
    assert done.exit_code == 2
    assert len(done.output.splitlines()) == 1
    assert done.output.startswith("error: ")
    assert message in done.output


@pytest.mark.parametrize(
    ("change", "layer"),
    [
        ({"dim": 200}, "200 inputs of layers.0.attn.wq_a"),
        ({"q_rank": 100}, "100 inputs of layers.0.attn.wq_b"),
        ({"kv_rank": 130}, "130 inputs of layers.0.attn.wkv_b"),
        ({"value_dim": 63}, "126 inputs of layers.0.attn.wo"),
        ({"expert_width": 64}, "64 inputs of layers.1.ffn.shared.w2"),
        ({"dense_width": 385}, "385 inputs of layers.0.ffn.w2"),
    ],
)
def test_inputs_in_part_of_a_tile_are_refused_unless_meant(change, layer):
    config = dataclasses.replace(configs["nano"], **change)
    with pytest.raises(ValueError, match=f"with recipe 'dsv3': the {layer} are not whole tiles of 128"):
        Model(config, "dsv3")
    check_tiles(config, lp.recipes["bf16"])
    check_tiles(dataclasses.replace(config, ragged_inputs=True), lp.recipes["dsv3"])


@pytest.mark.parametrize("name", configs.names())
def test_the_catalogue_suits_every_recipe(name):
    for recipe in lp.recipes.names():
        check_tiles(dataclasses.replace(configs[name], mtp_depth=1), lp.recipes[recipe])


def test_parameters_for_a_byte_further_are_counted_apart():
    config = dataclasses.replace(configs["nano"], mtp_depth=1)
    counts, without = config.parameter_counts(), configs["nano"].parameter_counts()
    assert dataclasses.replace(counts, mtp=0) == without
    shapes = config.parameter_shapes()
    block = sum(int(np.prod(s)) for n, s in shapes.items() if n.startswith("layers.2."))
    assert counts.mtp == block + 3 * 128 + 128 * 256  # a block of experts, three norms, the projection
    assert shapes["layers.3.projection"] == (128, 256)
    assert list(configs["nano"].parameter_shapes()) == [name for name in shapes if not name.startswith("layers.3.")]


def test_a_dense_model_has_a_block_of_experts_for_a_byte_further():
    config = dataclasses.replace(configs["nano"], dense_layers=3, mtp_depth=1)
    assert [name for name in config.parameter_shapes() if name.endswith(".gate")] == ["layers.3.ffn.gate"]
    assert isinstance(config, MoEConfig)
