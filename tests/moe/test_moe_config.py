"""The four configurations against the published table, and the errors of impossible ones."""

import dataclasses
import math

import pytest

from lowprec.moe.model.config import MoEConfig, ParameterCounts, configs
from lowprec.registry import UnknownNameError


@pytest.mark.parametrize(
    ("name", "exact", "millions", "share"),
    [
        ("nano", (1_433_216, 843_392, 774_144), ("1.43", "0.84", "0.77"), "91.8"),
        ("pilot", (1_822_464, 1_232_640, 1_097_728), ("1.82", "1.23", "1.10"), "89.1"),
        ("tiny", (6_667_520, 3_128_576, 2_981_888), ("6.67", "3.13", "2.98"), "95.3"),
        ("small", (28_650_624, 8_006_784, 7_741_440), ("28.65", "8.01", "7.74"), "96.7"),
    ],
)
def test_parameter_counts(name, exact, millions, share):
    counts = configs[name].parameter_counts()
    assert counts == ParameterCounts(*exact)
    assert tuple(f"{count / 1e6:.2f}" for count in exact) == millions
    assert f"{100 * counts.active_linear / counts.active:.1f}" == share


@pytest.mark.parametrize("name", configs.names())
def test_inner_dimensions_are_tiles_except_the_kept_ragged_one(name):
    ragged = set()
    for parameter, shape in configs[name].parameter_shapes().items():
        if len(shape) == 2:
            assert shape[1] % 128 == 0, parameter  # inner dimension of the forward GEMM
            if shape[0] % 128 and not parameter.endswith(".gate"):  # of the gradient's GEMM
                ragged.add(parameter.split(".")[-1])
    assert "wkv_a" in ragged
    assert configs[name].parameter_shapes()["layers.0.attn.wkv_a"][0] == 160
    # 2 heads of 96 and 6 heads of 96 are not whole tiles either; of the rest only wkv_a is ragged
    assert ragged <= {"wkv_a", "wq_b"}


def test_a_step_is_2048_bytes():
    assert {configs[name].batch * configs[name].sequence for name in configs} == {2048}


def test_parameter_names_say_their_place():
    shapes = configs["nano"].parameter_shapes()
    assert list(shapes)[:3] == ["embed", "layers.0.attn_norm", "layers.0.attn.wq_a"]
    assert list(shapes)[-2:] == ["norm", "head"]
    dense = [name for name in shapes if name.startswith("layers.0.ffn.")]
    assert dense == ["layers.0.ffn.w1", "layers.0.ffn.w3", "layers.0.ffn.w2"]
    experts = [name for name in shapes if name.startswith("layers.2.ffn.")]
    assert len(experts) == 1 + 3 + 8 * 3
    assert shapes["layers.2.ffn.gate"] == (8, 128)


def test_no_shared_expert_is_allowed():
    config = dataclasses.replace(configs["nano"], shared_experts=0)
    assert not [name for name in config.parameter_shapes() if "shared" in name]
    assert config.parameter_counts().total == 1_433_216 - 2 * 3 * 128 * 128


def test_initial_standard_deviation_is_the_original_one_scaled_by_width():
    config = dataclasses.replace(configs["nano"], dim=7168)
    assert math.isclose(config.init_std, 0.006, rel_tol=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dim": 0}, r"MoEConfig 'nano': dim=0: a whole number >= 1 is needed"),
        ({"layers": 2.0}, r"layers=2\.0: a whole number >= 1"),
        ({"top_k": True}, r"top_k=True"),
        ({"dense_layers": -1}, r"dense_layers=-1: a whole number >= 0"),
        ({"dense_layers": 4}, r"dense_layers=4 of layers=3"),
        ({"rope_dim": 5}, r"rope_dim=5: rotation works on pairs, so it must be even"),
        ({"vocabulary": 257}, r"vocabulary=257: tokens are bytes, so at most 256"),
        ({"groups": 3}, r"groups=3 must divide experts=8"),
        ({"kept_groups": 3}, r"kept_groups=3 of groups=2"),
        ({"top_k": 3, "kept_groups": 2}, r"top_k=3 must be a multiple of kept_groups=2"),
        ({"top_k": 5}, r"top_k=5 experts do not fit in kept_groups=1 groups of 4"),
        ({"rope_theta": math.inf}, r"rope_theta=inf: a finite number >= 0"),
        ({"balance_alpha": -0.1}, r"balance_alpha=-0\.1: a finite number >= 0"),
        ({"norm_eps": math.nan}, r"norm_eps=nan"),
    ],
)
def test_impossible_shapes_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(configs["nano"], **change)


def test_an_unknown_name_gets_the_close_one():
    with pytest.raises(UnknownNameError, match="unknown model configuration 'pliot': did you mean 'pilot'"):
        configs["pliot"]


def test_an_own_configuration_needs_no_registration():
    assert configs.get(MoEConfig(**dataclasses.asdict(configs["tiny"]) | {"name": "mine"})).name == "mine"
