"""Wrong rules of rounding and policy: the inputs of the default tests must tell each from the right one."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from test_rounding_oracle import FIXED, all_bfloat16, critical, expected

import lowprec as lp
from lowprec import oracle
from lowprec.oracle import casts

FORMATS = ["e4m3fn", "e5m2", "e4m3fnuz", "e2m1fn", "bfloat16", "p3109_k8p4se", "mxint8"]


@pytest.mark.parametrize("name", FORMATS)
def test_critical_inputs_tell_modes_apart(name: str) -> None:
    """Every two modes differ on some of them, so that none could stand in for another."""
    x = critical(name)
    codes = {mode: expected(x, name, mode, "ocp_nonsat") for mode in FIXED}
    for one, other in itertools.combinations(FIXED, 2):
        assert np.count_nonzero(codes[one] != codes[other]) >= 2, (one, other)


def mutants(nu: Fraction, odd: bool, negative: bool, mode: str, random: int, bits: int) -> dict[str, bool]:
    """Rules that are wrong but close, for one fraction."""
    half, full = Fraction(1, 2), 1 << bits
    if mode == "nearest_even":
        return {
            "ties away": nu >= half, "ties to zero": nu > half, "ties to odd": nu > half or (nu == half and not odd),
            "two roundings": (cut := Fraction(round(nu * 4), 4)) > half or (cut == half and odd),
        }  # fmt: skip
    if mode == "up":
        return {"nearest for negatives": nu > half if negative else nu > 0, "away": nu > 0, "cut": False}
    if mode == "A":
        return {
            "one too many": int(nu * full) + random + 1 >= full, "strict": int(nu * full) + random > full,
            "complement": nu * full > random, "C": round(nu * full) + random >= full,
        }  # fmt: skip
    if mode == "C":
        return {"half up": int(nu * full + half) + random >= full, "A": int(nu * full) + random >= full}
    return {"A": int(nu * full) + random >= full, "C": round(nu * full) + random >= full}


@pytest.mark.parametrize(("mode", "bits"), [("nearest_even", 0), ("up", 0), ("A", 3), ("B", 3), ("C", 3)])
def test_critical_inputs_kill_wrong_rules(mode: str, bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    f = oracle.fields(lp.formats["e4m3fn"])
    x = critical("e4m3fn").tolist()
    words = np.random.default_rng(2).integers(0, 1 << max(bits, 1), len(x)).tolist()
    right = [casts.cast(v, f, mode, "ocp_sat", r, bits) for v, r in zip(x, words, strict=True)]
    names = mutants(Fraction(1, 3), False, False, mode, 0, bits)
    for name in names:

        def wrong(nu, odd, negative, mode, random=0, bits=0, name=name):  # type: ignore[no-untyped-def]
            return mutants(nu, odd, negative, mode, random, bits)[name]

        with monkeypatch.context() as patch:
            patch.setattr(casts, "away", wrong)
            killed = [casts.cast(v, f, mode, "ocp_sat", r, bits) for v, r in zip(x, words, strict=True)]
        assert sum(a != b for a, b in zip(right, killed, strict=True)) >= 2, name


@pytest.mark.parametrize("name", ["e4m3fn", "e5m2", "e4m3fnuz"])
def test_presets_that_differ_are_told_apart(name: str) -> None:
    """Which presets are the same for a format is known; all others differ on the bfloat16 numbers."""
    f = oracle.fields(lp.formats[name])
    grid = set(all_bfloat16(name))
    answers = {p: tuple(casts.project(x, f, p) for x in sorted(grid, key=repr)) for p in lp.policies}
    # Saturating or not; in e4m3fn and e5m2 CUDA's NaN has no sign; in e5m2 PyTorch's NaN is all ones, and Inf may stay.
    assert len(set(answers.values())) == {"e4m3fn": 3, "e5m2": 5, "e4m3fnuz": 2}[name]
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
