"""Rules that are wrong but close: each must be told from the right one by the inputs of the default tests.

A test of exactness that a wrong rule passes is worth nothing. The recordings of real GPUs refute the same rules; where
they are at hand, the number of outputs on which each rule fails must be the published one.
"""

import functools
from dataclasses import replace

import numpy as np
import pytest
from adversarial import FAMILIES, Bits, Case, case, wanted
from recordings import Recording, diagonal_mma, needs_recordings, recording

import lowprec as lp
from lowprec import oracle
from lowprec.oracle import ADA_FP8, HOPPER_FP8, Rule

MACHINES = {"hopper_fp8": HOPPER_FP8, "ada_fp8": ADA_FP8}

# name -> what is wrong, applied to the right rule of a machine
MUTANTS = {
    "the other machine's group": lambda r: replace(r, group=48 - r.group),
    "interleaved groups of 16": lambda r: replace(r, group=16, interleaved=True),
    "12 fraction bits": lambda r: replace(r, fraction_bits=12),
    "14 fraction bits": lambda r: replace(r, fraction_bits=14),
    "25 fraction bits": lambda r: replace(r, fraction_bits=25),
    "result cut to 12": lambda r: replace(r, output_fraction=12),
    "result cut to 14": lambda r: replace(r, output_fraction=14),
    "result not cut": lambda r: replace(r, output="f32"),
    "alignment rounds down": lambda r: replace(r, align="floor"),
    "alignment to nearest": lambda r: replace(r, align="nearest"),
    "result to nearest": lambda r: replace(r, output_rounding="nearest"),
    "normalised exponents": lambda r: replace(r, normalise=True),
    "c added after": lambda r: replace(r, c_aligned=False),
    "-0 as a result": lambda r: replace(r, signed_zero=True),
    "NaN payload kept": lambda r: replace(r, nan_payload=True),
    "zeros take part at 2^0": lambda r: replace(r, zero_exponent=0),
    "zeros take part at the smallest product's exponent": lambda r: replace(r, zero_exponent=-28),
}

# Mismatches among 5,000 recorded outputs: H100 e4m3, H100 e5m2, Ada e4m3, Ada e5m2. The first twelve are published; the
# thirteenth is published for Ada, whose recordings have c.
PUBLISHED = {
    "the other machine's group": (814, 378, 1060, 717),
    "interleaved groups of 16": (870, 382, 1567, 1158),
    "12 fraction bits": (1963, 1026, 2706, 2245),
    "14 fraction bits": (867, 452, 1538, 1156),
    "25 fraction bits": (1085, 627, 2152, 1807),
    "result cut to 12": (1771, 1292, 2501, 2269),
    "result cut to 14": (1185, 721, 969, 881),
    "result not cut": (1415, 841, 1055, 962),
    "alignment rounds down": (1030, 541, 1317, 673),
    "alignment to nearest": (905, 457, 1946, 1646),
    "result to nearest": (715, 440, 1141, 1002),
    "normalised exponents": (462, 157, 547, 320),
    "c added after": (0, 0, 1870, 1666),  # 0: c is 0 there, and the rules are one
}
RECORDED = [("H100", "e4m3"), ("H100", "e5m2"), ("Ada", "e4m3"), ("Ada", "e5m2")]


@functools.cache
def inputs(pair: tuple[str, str]) -> tuple[Case, ...]:
    """A part of what test_accumulate_oracle.py compares."""
    return tuple(
        case(family, *pair, 5, 4, k, c)
        for family in FAMILIES
        for k, c in ((32, "near"), (40, "edge"), (96, "zeros"), (20, "tiny"))
    )


@functools.cache
def right(machine: str, pair: tuple[str, str]) -> tuple[Bits, ...]:
    return tuple(wanted(x, MACHINES[machine], *pair) for x in inputs(pair))


@pytest.mark.parametrize("pair", [("e4m3fn", "e4m3fn"), ("e5m2", "e5m2"), ("e4m3fn", "e5m2")], ids="-".join)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_default_inputs_kill(mutant: str, machine: str, pair: tuple[str, str]) -> None:
    rule = MUTANTS[mutant](MACHINES[machine])
    differing = 0
    for x, bits in zip(inputs(pair), right(machine, pair), strict=True):
        differing += np.count_nonzero(wanted(x, rule, *pair) != bits)
        if differing >= 5:
            return
    pytest.fail(f"{mutant}: only {differing} outputs differ from {machine}")


def test_the_inputs_know_every_mutant_apart_from_the_right_rule() -> None:
    for machine, rule in MACHINES.items():
        for mutant, change in MUTANTS.items():
            assert change(rule) != rule, f"{mutant} changes nothing of {machine}"


@needs_recordings
@pytest.mark.parametrize("column", range(4), ids=["-".join(r) for r in RECORDED])
@pytest.mark.parametrize("mutant", PUBLISHED)
def test_recordings_refute(mutant: str, column: int) -> None:
    """Every other rule fails on exactly as many of the 5,000 outputs as was published."""
    gpu, name = RECORDED[column]
    machine = HOPPER_FP8 if gpu == "H100" else ADA_FP8
    assert mismatches(recording(gpu, name), MUTANTS[mutant](machine)) == PUBLISHED[mutant][column]


@needs_recordings
@pytest.mark.parametrize("column", range(4), ids=["-".join(r) for r in RECORDED])
def test_recordings_confirm_the_right_rule(column: int) -> None:
    gpu, name = RECORDED[column]
    assert mismatches(recording(gpu, name), HOPPER_FP8 if gpu == "H100" else ADA_FP8) == 0


def mismatches(r: Recording, rule: Rule) -> int:
    rows = zip(r.a.tolist(), r.b.tolist(), r.c.tolist(), r.d.tolist(), strict=True)
    return sum(oracle.fused_dot(a, b, c, rule, r.fields, r.fields) != d for a, b, c, d in rows)


# The mutants that are machines of their own: the fast path must fail on as many outputs as the oracle does.
AS_MACHINES = {
    "12 fraction bits": {"fraction_bits": 12},
    "14 fraction bits": {"fraction_bits": 14},
    "25 fraction bits": {"fraction_bits": 25},
    "result not cut": {"output": "float32"},
}


@needs_recordings
@pytest.mark.parametrize("column", range(4), ids=["-".join(r) for r in RECORDED])
@pytest.mark.parametrize("mutant", ["the other machine's group", *AS_MACHINES])
def test_recordings_refute_through_mma(mutant: str, column: int) -> None:
    gpu, name = RECORDED[column]
    right, other = ("hopper_fp8", "ada_fp8") if gpu == "H100" else ("ada_fp8", "hopper_fp8")
    machine = lp.accumulators[right].with_(**AS_MACHINES[mutant]) if mutant in AS_MACHINES else other
    r = recording(gpu, name)
    assert np.count_nonzero(diagonal_mma(r, machine) != r.d) == PUBLISHED[mutant][column]
