"""Rules that are wrong but close: each must be told from the right one by the inputs of the default tests.

A test of exactness that a wrong rule passes is worth nothing. The recordings of real GPUs refute the same rules; where
they are at hand, the number of outputs on which each rule fails must be the published one.
"""

import functools
from pathlib import Path
from typing import Any

import machine_inputs
import machine_samples
import numpy as np
import pytest
from answers import once
from machine_samples import Sample, samples
from recordings import Recording, needs_recordings, recording

from lowprec import oracle
from lowprec.oracle import ADA_FP8, HOPPER_FP8, DotRule, Rule
from lowprec.oracle.mutants import FP22_MUTANTS, wrong_rules

MACHINES = {"hopper_fp8": HOPPER_FP8, "ada_fp8": ADA_FP8}
BY_GPU = {"H100": HOPPER_FP8, "Ada": ADA_FP8}

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
def inputs_source() -> tuple[str, ...]:
    """The files that make the operands."""
    modules = (machine_inputs, machine_samples)
    return tuple(Path(str(module.__file__)).read_text() for module in modules)


@functools.cache
def right_samples(name: str, family: str) -> list[tuple[Sample, list[int]]]:
    return [(x, x.wanted()) for x in samples(name, family)]


def told_apart(name: str, wrong: DotRule, enough: int = 2, pair: tuple[str, str] | None = None) -> int:
    """Outputs that test_machines_oracle.py compares and on which two rules differ; counting stops at `enough`."""
    differing = 0
    for family in machine_inputs.FAMILIES:
        for x, right in right_samples(name, family):
            if pair in (None, x.names):
                differing += sum(p != q for p, q in zip(x.wanted(wrong), right, strict=True))
            if differing >= enough:
                return differing
    return differing


@pytest.mark.parametrize("pair", [("e4m3fn", "e4m3fn"), ("e5m2", "e5m2"), ("e4m3fn", "e5m2")], ids="-".join)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("mutant", FP22_MUTANTS)
def test_default_inputs_kill(mutant: str, machine: str, pair: tuple[str, str]) -> None:
    once(lambda: check_kills(mutant, machine, pair), "kills", mutant, machine, pair, inputs_source())


def check_kills(mutant: str, machine: str, pair: tuple[str, str]) -> None:
    rule = FP22_MUTANTS[mutant](MACHINES[machine])
    assert rule != MACHINES[machine], f"{mutant} changes nothing of {machine}"
    differing = told_apart(machine, rule, 5, pair)
    assert differing >= 5, f"{mutant}: only {differing} outputs differ from {machine}"


# The other machines: what test_machines_oracle.py compares must tell each from its neighbours.


def distinct_machines() -> list[str]:
    """Names of machines of which no other has the same rule for the same formats."""
    seen: dict[Any, str] = {}
    for name, machine in oracle.ACCUMULATORS.items():
        seen.setdefault((machine.rule, machine.inputs, machine.scales), name)
    return list(seen.values())


@pytest.mark.parametrize("name", distinct_machines())
def test_default_inputs_tell_machines_apart(name: str) -> None:
    once(lambda: check_told_apart(name), "told apart", name, inputs_source())


def check_told_apart(name: str) -> None:
    counts = {mutant: told_apart(name, rule) for mutant, rule in wrong_rules(oracle.ACCUMULATORS[name].rule).items()}
    assert counts
    assert not {mutant: count for mutant, count in counts.items() if count < 2}


@needs_recordings
@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_what_the_recordings_contain(name: str) -> None:
    """So that a green run means what it says: Hopper's c are zero, Ada's are not, twins recorded the same inputs."""
    for gpu, twin in (("H100", "H200"), ("Ada", "L40S")):
        r, other = recording(gpu, name), recording(twin, name)
        assert all(np.array_equal(getattr(r, x), getattr(other, x)) for x in "abcd")
        assert np.any(r.c != 0) == (gpu == "Ada")
        assert r.a.shape == r.b.shape == (5000, 32)


@pytest.mark.sampled(0, default=10)
@needs_recordings
@pytest.mark.parametrize("column", range(4), ids=["-".join(r) for r in RECORDED])
@pytest.mark.parametrize("mutant", PUBLISHED)
def test_recordings_refute(mutant: str, column: int) -> None:
    """Every other rule fails on exactly as many of the 5,000 outputs as was published."""
    gpu, name = RECORDED[column]
    assert mismatches(recording(gpu, name), FP22_MUTANTS[mutant](BY_GPU[gpu])) == PUBLISHED[mutant][column]


def mismatches(r: Recording, rule: Rule) -> int:
    rows = zip(r.a.tolist(), r.b.tolist(), r.c.tolist(), r.d.tolist(), strict=True)
    return sum(oracle.fused_dot(a, b, c, rule, r.fields, r.fields) != d for a, b, c, d in rows)
