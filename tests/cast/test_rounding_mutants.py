"""Wrong rules of rounding and policy: the inputs of the default tests must tell each from the right one."""

import itertools

import numpy as np
import pytest
from test_rounding_oracle import FIXED, all_bfloat16, critical, expected

import lowprec as lp
from lowprec import oracle
from lowprec.oracle import casts
from lowprec.oracle.mutants import wrong_rounding

FORMATS = ["e4m3fn", "e5m2", "e4m3fnuz", "e2m1fn", "bfloat16", "p3109_k8p4se", "mxint8"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", FORMATS)
def test_critical_inputs_tell_modes_apart(name: str) -> None:
    """Every two modes differ on some of them, so that none could stand in for another."""
    x = critical(name)
    codes = {mode: expected(x, name, mode, "ocp_nonsat") for mode in FIXED}
    for one, other in itertools.combinations(FIXED, 2):
        assert np.count_nonzero(codes[one] != codes[other]) >= 2, (one, other)


#: Modes and how many random bits they are given.
MODES = [*((mode, 0) for mode in FIXED), ("A", 3), ("B", 3), ("C", 3)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("mode", "bits"), MODES)
def test_critical_inputs_kill_wrong_rules(mode: str, bits: int) -> None:
    f = oracle.fields(lp.formats["e4m3fn"])
    x = critical("e4m3fn").tolist()
    words = np.random.default_rng(2).integers(0, 1 << max(bits, 1), len(x)).tolist()
    right = [casts.cast(v, f, mode, "ocp_sat", r, bits) for v, r in zip(x, words, strict=True)]
    for name, rule in wrong_rounding(mode).items():
        killed = [casts.cast(v, f, mode, "ocp_sat", r, bits, rule) for v, r in zip(x, words, strict=True)]
        assert sum(a != b for a, b in zip(right, killed, strict=True)) >= 2, name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["e4m3fn", "e5m2", "e4m3fnuz"])
def test_presets_that_differ_are_told_apart(name: str) -> None:
    """Which presets are the same for a format is known; all others differ on the bfloat16 numbers."""
    f = oracle.fields(lp.formats[name])
    grid = set(all_bfloat16(name))
    answers = {p: tuple(casts.project(x, f, p) for x in sorted(grid, key=repr)) for p in lp.policies}
    # Saturating or not; in e4m3fn and e5m2 CUDA's NaN has no sign; in e5m2 PyTorch's NaN is all ones, and Inf may stay.
    # RISC-V's, AMD's two and CANN's are new everywhere but that the one NaN of e4m3fnuz makes two of them old; in e5m2
    # RISC-V's two differ, and Arm's from CUDA's.
    assert len(set(answers.values())) == {"e4m3fn": 7, "e5m2": 11, "e4m3fnuz": 4}[name]
    assert answers["ocp_sat"] != answers["ocp_nonsat"]
    assert (answers["torch_2_11"] == answers["torch_2_13"]) == (name != "e4m3fn")


# `oracle.encode` knows sign and magnitude with OFP8's policies.
OFP8 = [name for name in FORMATS if lp.formats[name].specials in ("ieee", "fn", "fnuz", "finite")]


@pytest.mark.parametrize("name", OFP8)
def test_the_two_oracles_agree(name: str) -> None:
    """`oracle.encode`, written for nearest even alone, and `casts.cast` with all modes."""
    f = oracle.fields(lp.formats[name])
    for x in critical(name).tolist():
        kept = -1 if x == x else ~(1 << f.width)  # one of them keeps the sign of a NaN
        for preset, overflow in (("ocp_sat", "saturate"), ("ocp_nonsat", "nonsaturate")):
            assert casts.cast(x, f, preset=preset) & kept == oracle.encode(x, f, overflow) & kept, x
