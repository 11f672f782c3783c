"""The kernel cache never serves stale code, and compiled or found kernels give the same bits; importing is light."""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from refusals import refusals

import lowprec
import lowprec as lp
from lowprec import _jit

PACKAGE = Path(lp.__file__).parent

CALLER = """
import numpy as np
from lowprec._jit import kernel
from .stale_room.stale_callee import step

@kernel
def total(n):
    s = 0.0
    for i in range(n):
        s += step(i)
    return s
"""
CALLEE = "from lowprec._jit import kernel\n\n@kernel\ndef step(i):\n    return {}\n"
PROGRAM = (
    "from lowprec import _jit; from lowprec.kernels.stale_caller import total;"
    "print(total(10), sum(total.stats.cache_hits.values()), _jit.cache_folder)"
)


def run(program: str, root: Path, **environment: str) -> list[str]:
    env = os.environ | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"} | environment
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=env, cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.fixture
def copied_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a copy with two kernels of our own, and a kernel cache of its own."""
    monkeypatch.setenv("LOWPREC_CACHE_DIR", str(tmp_path / "cache"))
    shutil.copytree(PACKAGE, tmp_path / "lowprec", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "lowprec/kernels/stale_caller.py").write_text(CALLER)
    room = tmp_path / "lowprec/kernels/stale_room"  # kernels in folders count like those beside them
    room.mkdir()
    (room / "__init__.py").write_text("")
    (room / "stale_callee.py").write_text(CALLEE.format("i * 1.0"))
    return tmp_path


def test_what_is_compiled_is_told_and_what_is_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_jit, "cache_folder", None)  # an earlier run's `inner` would be found there

    @_jit.kernel
    def inner(x):
        return x + 1

    @_jit.kernel
    def outer(x):
        return inner(x) * 2

    told: list[int] = []
    with _jit.compiling(told.append):
        assert outer(3) == 8
        assert told == [1, 2, 0]  # the one, and in its course the other
        assert outer(4) == 10
    outer(1.5)  # nobody listens
    assert told == [1, 2, 0]


def test_a_long_compilation_is_told_once_and_not_where_something_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    notice = _jit._Notice()
    notice.patience, notice.is_reported, notice.watchers = 0.0, False, 1
    notice.on_start(None)
    assert notice.timer is None
    notice.on_end(None)
    notice.watchers = 0
    for _ in range(2):
        notice.on_start(None)
        notice.on_start(None)  # a kernel that the first one calls
        if notice.timer is not None:
            notice.timer.join()
        notice.on_end(None)
        notice.on_end(None)
    assert capsys.readouterr().err.count("`lowprec warm`") == 1


@pytest.mark.slow
def test_edit_of_a_callee_in_another_file_is_seen(copied_package: Path) -> None:
    assert run(PROGRAM, copied_package)[:2] == ["45.0", "0"]
    assert run(PROGRAM, copied_package)[:2] == ["45.0", "1"], "the second process should find the kernel"
    (copied_package / "lowprec/kernels/stale_room/stale_callee.py").write_text(CALLEE.format("i * 2.0"))
    assert run(PROGRAM, copied_package)[:2] == ["90.0", "0"]


def test_hash_tells_folders_apart(copied_package: Path) -> None:
    """A kernel file that moves to another room is another source, even with the same name and text."""
    package = copied_package / "lowprec"
    before = _jit.source_hash(package)
    (package / "kernels/stale_room").rename(package / "kernels/stale_room_of_others")
    assert _jit.source_hash(package) != before


@pytest.mark.slow
def test_another_checkout_finds_the_kernel(copied_package: Path) -> None:
    assert run(PROGRAM, copied_package)[:2] == ["45.0", "0"]
    other = copied_package / "other"
    shutil.copytree(copied_package / "lowprec", other / "lowprec", copy_function=shutil.copyfile)  # with new times
    assert run(PROGRAM, other)[:2] == ["45.0", "1"]


@pytest.mark.slow
def test_two_processes_compile_a_kernel_once(copied_package: Path) -> None:
    with ThreadPoolExecutor(2) as both:
        answers = list(both.map(run, [PROGRAM] * 2, [copied_package] * 2))
    assert [total for total, _, _ in answers] == ["45.0", "45.0"]
    assert sorted(hits for _, hits, _ in answers) == ["0", "1"]


@pytest.mark.slow
def test_without_a_writable_folder_kernels_compile_in_memory(copied_package: Path) -> None:
    blocked = copied_package / "not_a_folder"
    blocked.write_text("a file where the cache folder should go")
    answer = run(PROGRAM, copied_package, LOWPREC_CACHE_DIR=str(blocked))
    assert answer == ["45.0", "0", "None"]


def test_import_is_light() -> None:
    program = (
        "import sys, lowprec; heavy = {'numba', 'pandas', 'scipy', 'matplotlib', 'ml_dtypes'} & set(sys.modules);"
        "print(sorted(heavy)); lowprec.formats['e4m3fn'].max; print('numba' in sys.modules)"
    )
    assert run(program, PACKAGE.parent) == ["[]", "False"]


def test_public_names_resolve() -> None:
    for name in lp.__all__:
        assert getattr(lp, name) is not None
    import lowprec.format.catalogue  # noqa: F401  importing the module must not replace the catalogue

    assert lp.formats["e4m3fn"].name == "e4m3fn"
    with pytest.raises(AttributeError, match="attribute encoed"):
        _ = lp.encoed


test_thread_count_must_be_positive = refusals(
    (f"lp.set_num_threads({wrong})", "set_num_threads: n must be an integer >= 1, got ")
    for wrong in ("0", "-1", "1.5", "'2'", "True")
)


def test_thread_count_from_the_environment() -> None:
    program = "import lowprec as lp; print(lp.get_num_threads())"
    assert run(program, PACKAGE.parent, LOWPREC_NUM_THREADS="3") == ["3"]
    with pytest.raises(subprocess.CalledProcessError) as failure:
        run(program, PACKAGE.parent, LOWPREC_NUM_THREADS="many")
    assert "LOWPREC_NUM_THREADS must be an integer >= 1, got 'many'" in failure.value.stderr


@pytest.mark.slow
def test_numba_comes_without_scipy_s_linear_algebra_and_still_finds_its_blas() -> None:
    program = (
        "import sys; from lowprec import _jit; print('scipy.linalg' in sys.modules);"
        "import numba, numpy as np; dot = numba.njit(lambda a, b: np.dot(a, b));"
        "print(dot(np.ones(3), np.full(3, 2.0)), 'scipy.linalg' in sys.modules)"
    )
    pytest.importorskip("scipy")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "6.0", "True"]


# --- the same bits cold and warm --------------------------------------------------------------------------------------


EVERYTHING = """
import contextlib, hashlib, json, sys
import numpy as np
import entries, public_calls
import lowprec as lp
from lowprec.scaling.block_formats import block_formats

X, out = np.concatenate([entries.numbers()] * 2), {}  # with NaN

def keep(what, parts):
    out[what] = hashlib.sha256(b"".join(parts)).hexdigest()[:16]

def everything():
    for name in lp.formats:
        for rounding in lp.roundings:
            for policy in ("ocp_sat", "ocp_nonsat"):
                keep(f"format {name} {rounding} {policy}", entries.cast_bits(lp.formats[name], rounding, policy))
    for kind, (catalogue, does, _) in entries.DOES.items():
        for name in catalogue:
            keep(f"{kind} {name}", does(catalogue[name]))
    for name in lp.quantizers:
        for granularity in (None, "1x16", "16x1", "7x5"):
            changes = {"granularity": granularity} if granularity else {}
            q = lp.quantizers[name].with_(amax_history_len=None, **changes)
            for how in ({}, {"rounding": "stochastic", "seed": 5} if q.rule.four_over_six is None else {}):
                made = lp.quantize(X, q, **how)
                again, values = made.requantize("1x16"), lp.quantize_dequantize(X, q, **how)
                parts = entries.bits(made.codes, made.scale, made.dequantize(), values, again.codes, again.dequantize())
                keep(f"NaN by {name} {granularity} {how}", parts)
    for name in block_formats:
        f = block_formats[name]
        keep(f"block format {name}", entries.bits(*f.encode(X), f.round_to(X)))
    for name in lp.codecs:
        values = np.resize(X, (8, getattr(lp.codecs[name], "columns_multiple", 512)))
        keep(f"NaN in {name}", entries.bits(lp.codecs[name].round_trip(values)))
    with np.errstate(all="ignore"):
        for name, call in public_calls.OF_VALUES.items():
            with contextlib.suppress(ValueError):  # NaN is refused
                found = call(X[:, :128])
                keep(name, entries.bits(found) if isinstance(found, np.ndarray) else [repr(found).encode()])

if sys.argv[1] == "everything":
    everything()
else:
    made = lp.quantize(X, "deepgemm")
    keep("quantizer", entries.bits(made.codes, made.scale, made.dequantize()))
print(json.dumps(out))
"""


def digests(cache: Path, what: str) -> dict[str, str]:
    folders = (Path(lowprec.__file__).parents[1], Path(__file__).parent)
    environment = {**os.environ, "LOWPREC_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(map(str, folders))}
    command = [sys.executable, "-P", "-W", "ignore", "-c", EVERYTHING, what]
    child = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr[-2000:]
    found: dict[str, str] = json.loads(child.stdout)
    return found


def check(cache: Path, what: str) -> None:
    cold, warm = digests(cache, what), digests(cache, what)
    assert any(cache.rglob("*.nbi")), "nothing was compiled"
    assert cold
    assert {key for key in cold if cold[key] != warm[key]} == set()
    assert cold.keys() == warm.keys()


@pytest.mark.slow
def test_a_block_quantizer(tmp_path: Path) -> None:
    check(tmp_path, "deepgemm")


@pytest.mark.exhaustive
def test_the_whole_catalogue(tmp_path: Path) -> None:
    check(tmp_path, "everything")
