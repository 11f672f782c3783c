"""The blind test: accumulators drawn from all fields, with a seed of the moment, must be named from their outputs.

`PYTHONPATH=. python tests/diagnose/test_identify_blind.py COUNT [SEED]` prints a line for each and the counts.
"""

import secrets
import sys
import time
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pytest
from dumps import E4M3, mma

import lowprec as lp
from lowprec.diagnose.identify.candidate import MmaCandidate
from lowprec.diagnose.identify.identification import Identification
from lowprec.diagnose.identify.normal_form import NormalForms
from lowprec.diagnose.identify.probes import probes_for
from lowprec.tensorcore.accumulator import FLOAT64, heeded_fields
from lowprec.tensorcore.kinds.amd import ExactGroupSum, PairwiseSum, TruncateFloorSum
from lowprec.tensorcore.kinds.arm import RoundedGroupSum, RoundToOddSum, ScaledGroupSum
from lowprec.tensorcore.kinds.nvidia import FusedSum, SplitF16Sum
from lowprec.tensorcore.kinds.sequential import SequentialSum
from lowprec.tensorcore.kinds.x86 import FlushedFmaSum, LaneChains, PairedLaneChains

DATA = ("normal", "wide", "sparse")
MORE = 4  # rounds of probes
SEED = 4062078956  # of what runs by default, so that a run can be repeated


class Verdict(NamedTuple):
    """How a machine was named.

    "exact": alone. "same": with others that are proven to do the same. "probed": so after probes. "together": among
    those that probes do not tell apart, or as one that no probe tells from it. "other": as one that gives all outputs,
    but differs elsewhere. "missed": nothing explains the outputs. Seconds and those of CPU are of the first `identify`,
    without probes.
    """

    how: str
    seconds: float
    cpu: float
    machine: lp.Accumulator
    said: str


#: Kinds without scales that are not exact.
DRAWN = (
    ExactGroupSum, FlushedFmaSum, FusedSum, SplitF16Sum, LaneChains, RoundToOddSum, PairedLaneChains, PairwiseSum,
    RoundedGroupSum, ScaledGroupSum, SequentialSum, TruncateFloorSum,
)  # fmt: skip


def draw(rng: np.random.Generator) -> lp.Accumulator:
    """Draw an accumulator without scales: one of the catalogue, about half of whose fields are drawn anew."""
    bases = [
        m for m in (lp.accumulators[n] for n in lp.accumulators) if m.scale_format is None and m.dtype != np.float64
    ]
    kind = DRAWN[rng.integers(len(DRAWN))]
    own = [m for m in bases if type(m) is kind]
    base = own[rng.integers(len(own))].with_(input_formats=())
    while True:
        changes: dict[str, Any] = {}
        for field in heeded_fields(type(base)):
            if rng.random() < 0.5 and field in VALUES:
                changes[field] = VALUES[field](rng, base)
        try:
            steps = changes.pop("promote_every", None)
            machine = base.with_(**changes)
            if steps is not None:
                machine = base.with_(**changes, promote_every=steps * machine.step())
            mma(machine, np.zeros((1, 1), np.uint8), np.zeros((1, 1), np.uint8))
            return machine
        except ValueError:  # fields that do not go together
            continue


VALUES: dict[str, Any] = {
    "group_size": lambda rng, base: int(2 ** rng.integers(0, 8) if rng.random() < 0.6 else rng.integers(1, 129)),
    "fraction_bits": lambda rng, base: int(rng.integers(3, 41)),
    "align": lambda rng, base: str(rng.choice(base.alignments)),
    "output_format": lambda rng, base: (some := [o for o in base.output_formats if o != FLOAT64])[
        rng.integers(len(some))
    ],
    "zero_exponent": lambda rng, base: None if rng.random() < 0.3 else int(rng.integers(-140, 8)),
    "exact_group": lambda rng, base: int(rng.choice([1, 2, 4])),
    "lanes": lambda rng, base: int(rng.choice([1, 2, 4])),
    "promote_every": lambda rng, base: None if rng.random() < 0.5 else int(rng.integers(1, 5)),  # of its steps
    "saturate": lambda rng, base: bool(rng.integers(2)),
    "product_scale_log2": lambda rng, base: int(rng.integers(-20, 21)),
}


def codes(rng: np.random.Generator, data: str, shape: tuple[int, int]) -> np.ndarray:
    x = rng.standard_normal(shape)
    if data == "wide":
        x *= 2.0 ** rng.integers(-6, 7, shape)
    if data == "sparse":
        x[rng.random(shape) < 0.7] = 0
    return lp.encode(x, "e4m3fn")


def named(found: Identification, machine: lp.Accumulator) -> bool:
    """Tell whether one of those that explain the dump is the machine, but for what provably does not show."""
    forms = NormalForms(found.dumps[0])
    return any(forms.same(c, MmaCandidate(machine)) for c in found.explaining)


def blind(
    seed: int, number: int, side: int = 64, lengths: tuple[int, ...] = (128, 256), more: int = MORE, limit: float = 60
) -> Verdict:
    rng = np.random.default_rng([seed, number])
    machine = draw(rng)
    k, data = int(rng.choice(lengths)), DATA[number % 3]
    given: dict[str, Any] = {"a": codes(rng, data, (side, k)), "b": codes(rng, data, (side, k)), "c": None}
    if rng.random() < 0.5:
        given["c"] = (4 * rng.standard_normal((side, side))).astype(machine.dtype)

    def run(arrays: dict[str, Any]) -> dict[str, Any]:
        operands = {name: arrays.get(name) for name in ("a", "b", "c")}
        return {**operands, **E4M3, "d": mma(machine, **operands)}

    start, cpu = time.perf_counter(), time.process_time()
    found = lp.identify(**run(given), seconds=limit)
    spent = time.perf_counter() - start, time.process_time() - cpu
    how, also = "same" if found.same or len(found.explaining) > 1 else "exact", []
    for turn in range(more):
        if len(found.classes) < 2 or not (probes := found.probes(seed=turn)):
            break
        how = "probed"
        also.append(run(probes.arrays))
        found = lp.identify(**run(given), also=also, seconds=limit)
    if len(found.classes) > 1:
        how = "together"
    if not found.explaining or found.differing:
        how = "missed"
    elif not named(found, machine):
        # Are there operands for which what was named, and the machine, differ?
        apart = probes_for(found.dumps[0], (found.candidates[0], MmaCandidate(machine)), seed=99)
        how = "other" if apart else "together"
    return Verdict(how, *spent, machine, f"{data} K={k} {found.sentence}")


@pytest.mark.ci
def test_drawn_machines_are_explained() -> None:
    """Small dumps, and no probes: all outputs are explained, whether or not they tell all machines apart."""
    verdicts = [blind(SEED, number, 32, (64, 96), 0, 600) for number in range(6)]  # seconds that others use, too
    assert not [str(v) for v in verdicts if v.how == "missed"]


@pytest.mark.exhaustive
def test_a_hundred_machines_of_the_moment_are_named() -> None:
    seed = secrets.randbits(32)
    wrong = [str(v) for v in (blind(seed, number) for number in range(100)) if v.how in ("other", "missed")]
    assert len(wrong) <= 5, f"seed {seed}: {wrong}"


if __name__ == "__main__":
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else secrets.randbits(32)
    sys.stdout.write(f"seed {seed}\n")
    counts: Counter[str] = Counter()
    for number in range(int(sys.argv[1])):
        v = blind(seed, number)
        counts[v.how] += 1
        times = f"{v.seconds:.1f} s, {v.cpu:.1f} s of CPU"
        sys.stdout.write(f"{number} {v.how} {times} {v.machine} | {v.said}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{dict(counts)}\n")
