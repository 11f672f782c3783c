"""Golden losses: every bit of short training runs with every recipe, on any thread count and any kind of CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import refresh
from golden_runs import golden
from small_models import in_bytes

import lowprec as lp

EXPECTED = json.loads(golden.FILE.read_text())
#: Recipes whose multiplications take the slow kernels, with fewer steps here; `-m exhaustive` makes all of them.
SLOW = {"mxfp8", "mxfp4_rceil", "nvfp4"}


def check(config, recipe, steps):
    assert f"{config}/{recipe}" in EXPECTED, f"no losses recorded; run: {refresh.COMMAND}"
    expected = EXPECTED[f"{config}/{recipe}"]
    got = golden.losses(config, recipe, steps)
    for key in ("losses", "grad_norms"):
        assert got[key] == expected[key][:steps]
    if steps == len(expected["losses"]):
        assert got["validation"] == expected["validation"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("config", "recipe", "steps"), golden.RUNS)
def test_first_steps(config, recipe, steps):
    check(config, recipe, min(steps, 2 if recipe in SLOW else 3))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("config", "recipe", "steps"), golden.RUNS)
def test_all_steps(config, recipe, steps):
    check(config, recipe, steps)


def test_they_tell_the_recipes_apart():
    assert len({json.dumps(run) for run in EXPECTED.values()}) == len(EXPECTED)
    assert all(len(run["losses"]) == golden.STEPS for name, run in EXPECTED.items() if name.startswith("micro/"))


# --- the same bits everywhere ----------------------------------------------------------------------------------------

#: A recipe of each kind: float32 sums, FP22 in float32 lanes with promotion, scales inside the instruction.
KINDS = ["bf16", "dsv3", "mxfp8"]
PROGRAM = """
import json, sys
sys.path[:0] = ["tests/moe", "tests", "reference_data"]
from golden_runs import golden
print(json.dumps({name: golden.losses("micro", name, 2) for name in sys.argv[1:]}))
"""


def in_a_process(recipes, **environment):
    """Run short trainings in another process, with kernels compiled for another CPU or for other threads."""
    root = Path(__file__).parents[2]
    variables = {**os.environ, "PYTHONPATH": str(root), **environment}
    command = [sys.executable, "-c", PROGRAM, *recipes]
    done = subprocess.run(command, cwd=root, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


#: What x86-64-v3 has, AVX2 but no AVX-512: LLVM's names. NUMBA_CPU_NAME alone would keep the host's features.
AVX2 = "+sse,+sse2,+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+avx,+avx2,+fma,+bmi,+bmi2,+lzcnt,+f16c,+movbe,+cx16,+fxsr,+mmx"


@pytest.mark.ci
@pytest.mark.skipif("x86" not in os.uname().machine, reason="the features are those of x86-64")
@pytest.mark.parametrize(
    ("cpu", "features"), [("x86-64-v3", AVX2), pytest.param("generic", "", marks=pytest.mark.exhaustive)]
)
def test_the_kind_of_cpu_changes_nothing(cpu, features):
    for name, other in in_a_process(KINDS, NUMBA_CPU_NAME=cpu, NUMBA_CPU_FEATURES=features).items():
        for key in ("losses", "grad_norms"):
            assert other[key] == EXPECTED[f"micro/{name}"][key][:2]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", KINDS)
def test_threads_change_nothing(recipe, keep_threads):
    # A step of nano is large enough for every operation to use its threads.
    seen = []
    for threads in (1, 2, 3):
        lp.set_num_threads(threads)
        trainer = golden.trainer("nano", recipe)
        seen.append((trainer.step(), in_bytes(trainer.model.params)))
    assert seen[0] == seen[1] == seen[2]
