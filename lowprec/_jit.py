"""The package's use of Numba: compilation, caching, bit casts.

This is the only module that imports Numba. Two facts determine its design:

* Numba's own disk cache misses an edit to a function that a cached kernel calls from another file and
  then returns the old numbers. The cache folder here is therefore named after a hash of *all* kernel
  sources and of the compiler's versions: an edit anywhere starts a fresh folder.
* Where no folder can be written (a read-only installation without a home), kernels compile in memory.

Kernels are serial loops that release the GIL; threads are `_threads`' affair.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeVar, cast


def _import_numba() -> None:
    """Import Numba without SciPy's linear algebra, which takes half of the import time.

    Numba imports that only to find a BLAS, which kernels here do not use. Afterwards Numba is in the same state as
    after a plain import: other packages' ``np.dot`` finds the BLAS when it is compiled.
    """
    blas = "scipy.linalg"
    if "numba" in sys.modules or blas in sys.modules:
        return
    modules = cast(dict[str, ModuleType | None], sys.modules)
    modules[blas] = None  # an import of it fails
    try:
        import numba.np.arraymath as arraymath
    finally:
        del modules[blas]
    if hasattr(arraymath, "_HAVE_BLAS"):
        arraymath._HAVE_BLAS = importlib.util.find_spec("scipy") is not None


_import_numba()

import llvmlite  # noqa: E402
import numba  # noqa: E402
import numba.core.compiler_lock  # noqa: E402
import numba.core.config as numba_config  # noqa: E402
import numba.core.event  # noqa: E402
import numba.core.registry  # noqa: E402
import numpy as np  # noqa: E402
from llvmlite import ir as ir  # noqa: E402
from numba import types as types  # noqa: E402
from numba.core import cgutils as cgutils  # noqa: E402
from numba.extending import intrinsic as intrinsic  # noqa: E402

F = TypeVar("F", bound=Callable[..., Any])

config: Any = numba_config
_cache_lock = threading.Lock()


def source_hash(package: Path | None = None) -> str:
    """Return a hash of all kernel sources and compiler versions that determine the machine code.

    Parameters
    ----------
    package : Path, optional
        Folder of the package; by default this installation's.

    Returns
    -------
    str
        Sixteen hexadecimal digits.
    """
    root = Path(__file__).parent if package is None else package
    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__} {np.__version__} {sys.version}".encode())
    for path in [root / "_jit.py", *sorted((root / "kernels").rglob("*.py"))]:
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _find_cache_folder() -> Path | None:
    """Return the folder for compiled kernels, created and checked to be writable, or None."""
    if chosen := os.environ.get("LOWPREC_CACHE_DIR"):
        base = Path(chosen)
    elif (chosen := os.environ.get("NUMBA_CACHE_DIR")) or (chosen := os.environ.get("XDG_CACHE_HOME")):
        base = Path(chosen) / "lowprec"
    else:
        base = Path(os.path.expanduser("~")) / ".cache" / "lowprec"
    folder = base / f"kernels-{source_hash()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError:
        return None
    return folder


cache_folder: Path | None = _find_cache_folder()
_KERNELS = Path(__file__).parent / "kernels"


def kernel(function: F, *, inline: bool = False) -> F:
    """Compile a function with Numba: no GIL, IEEE arithmetic, NumPy's division, cached on disk.

    Never `fastmath`: kernels compute the written operations in the written order. `inline` is for a function that one
    other kernel calls: it is compiled only there, as LLVM would otherwise optimize it twice.
    """
    compiled = numba.njit(nogil=True, error_model="numpy", inline="always" if inline else "never")(function)
    if cache_folder is not None and not inline:
        # Numba reads the folder once, when caching is enabled; other packages' caches are unaffected.
        with _cache_lock:
            before, config.CACHE_DIR = config.CACHE_DIR, str(cache_folder)
            try:
                compiled.enable_caching()
            except (RuntimeError, OSError):  # the folder was removed: compile in memory
                pass
            finally:
                config.CACHE_DIR = before
        if _KERNELS in Path(function.__code__.co_filename).parents:
            _name_by_content(compiled, cache_folder)
        _compile_once(compiled, cache_folder)
    return cast(F, compiled)


def _name_by_content(compiled: Any, folder: Path) -> None:
    """Make the cache files of a package's kernel independent of the checkout's path and times.

    Numba names a kernel's files after the path of its source and discards them when that file's time changes. The
    folder is named after the content of all sources instead, so neither the path nor the times of a checkout matter.
    """
    cache = compiled._cache
    if not hasattr(cache, "_cache_file"):  # no folder: `NullCache`
        return
    path = Path(compiled.py_func.__code__.co_filename)
    room = folder / path.relative_to(_KERNELS).parent
    room.mkdir(parents=True, exist_ok=True)
    cache._cache_path = str(room)
    cache._cache_file = type(cache._cache_file)(
        cache_path=str(room), filename_base=cache._impl.filename_base, source_stamp=""
    )


_locked: set[str] = set()  # kernels with a file lock of this process; accessed only under Numba's lock


def _compile_once(compiled: Any, folder: Path) -> None:
    """Make processes that need the same kernel wait for the first one to compile it, and then load it from disk.

    Numba's per-process lock is taken before the file lock. In the other order, a thread that holds the file lock and
    waits for Numba's could deadlock with one that holds Numba's and waits for the file. Processes cannot deadlock
    either: each locks a caller's file before those of its callees.
    """
    name = f"{compiled.py_func.__module__}.{compiled.py_func.__qualname__}"

    def compile_locked(signature: Any) -> Any:
        with contextlib.ExitStack() as stack:
            stack.enter_context(numba.core.compiler_lock.global_compiler_lock)
            if name not in _locked:  # a kernel may call itself for other types
                _locked.add(name)
                stack.callback(_locked.discard, name)
                with contextlib.suppress(OSError):  # a file system without locks: some kernels are compiled twice
                    file = stack.enter_context(open(folder / f"{name}.lock", "ab"))
                    fcntl.flock(file, fcntl.LOCK_EX)
            return type(compiled).compile(compiled, signature)

    compiled.compile = compile_locked


def variant(function: F, name: str, *, inline: bool = False, **names: Any) -> F:
    """Compile a function with some of its module's names rebound: one source for several tiles.

    A closure over them would work too, but Numba's disk cache never finds a closure again. There the qualified names
    distinguish variants.

    Parameters
    ----------
    function : callable
        Function, itself not compiled; its module holds placeholders for `names`.
    name : str
        Name of the variant, unique in the module.
    inline : bool
        See `kernel`.
    **names
        Objects to bind to the names.
    """
    plain = FunctionType(function.__code__, {**function.__globals__, **names}, name)
    plain.__qualname__ = name
    return kernel(cast(F, plain), inline=inline)


class _Listener(numba.core.event.Listener):
    def __init__(self, report: Callable[[int], object]) -> None:
        self.report, self.count, self.depth = report, 0, 0

    def on_start(self, event: Any) -> None:
        self.count += 1
        self.depth += 1
        self.report(self.count)

    def on_end(self, event: Any) -> None:
        self.depth -= 1
        if self.depth == 0:  # a kernel compiles those that it calls
            self.report(0)


@contextlib.contextmanager
def compiling(report: Callable[[int], object]) -> Iterator[None]:
    """Report compilations while a block runs, in any thread; kernels found on disk do not count.

    Parameters
    ----------
    report : callable
        Called with 1 when the first kernel is compiled, with 2 for the second ..., and with 0 after the last one.
    """
    _notice.watchers += 1
    try:
        with numba.core.event.install_listener("numba:compile", _Listener(report)):
            yield
    finally:
        _notice.watchers -= 1


class _Notice(numba.core.event.Listener):
    """Write one line to stderr when a process has compiled for two seconds and no block reports it.

    A worker process writes nothing: its parent reports.
    """

    patience = 2.0

    def __init__(self) -> None:
        self.watchers, self.depth, self.began, self.seconds = 0, 0, 0.0, 0.0
        self.timer: threading.Timer | None = None
        self.is_reported = multiprocessing.parent_process() is not None

    def on_start(self, event: Any) -> None:
        self.depth += 1
        if self.depth == 1 and not self.is_reported and not self.watchers:
            self.began = time.monotonic()
            self.timer = threading.Timer(max(self.patience - self.seconds, 0.0), self.report)
            self.timer.daemon = True
            self.timer.start()

    def on_end(self, event: Any) -> None:
        self.depth -= 1
        if self.depth == 0 and self.timer is not None:
            self.timer.cancel()
            self.timer = None
            self.seconds += time.monotonic() - self.began

    def report(self) -> None:
        self.is_reported = True
        sys.stderr.write("lowprec: compiling kernels, once per version; `lowprec warm` compiles all of them\n")


_notice = _Notice()
numba.core.event.register("numba:compile", _notice)


def _bitcast(source: Any, target: Any) -> Any:
    llvm_target = {types.uint32: ir.IntType(32), types.float32: ir.FloatType(),
                   types.uint64: ir.IntType(64), types.float64: ir.DoubleType()}[target]  # fmt: skip

    def typed(typingctx: Any, value: Any) -> Any:
        if value != source:
            return None

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.bitcast(args[0], llvm_target)

        return target(source), codegen

    return typed


# Inside kernels: the bits of a float scalar and back. Scalars, not `.view` on small arrays, so that loops vectorise.
bits32: Any = intrinsic(_bitcast(types.float32, types.uint32))
float32_from_bits: Any = intrinsic(_bitcast(types.uint32, types.float32))
bits64: Any = intrinsic(_bitcast(types.float64, types.uint64))
float64_from_bits: Any = intrinsic(_bitcast(types.uint64, types.float64))


def _shift32(operation: str) -> Any:
    def typed(typingctx: Any, value: Any, amount: Any) -> Any:
        """Shift uint32 by uint32 below 32; Numba's own operators work, and vectorise, on 64 bits."""
        if (value, amount) != (types.uint32,) * 2:
            return None

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return getattr(builder, operation)(*args)

        return types.uint32(types.uint32, types.uint32), codegen

    return typed


shift_right: Any = intrinsic(_shift32("lshr"))
shift_left: Any = intrinsic(_shift32("shl"))


def _fma32(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a * b + c with one rounding (IEEE fusedMultiplyAdd on float32)."""
    if (a, b, c) != (types.float32,) * 3:
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return types.float32(types.float32, types.float32, types.float32), codegen


fma32: Any = intrinsic(_fma32)


def _set_rounding(typingctx: Any, mode: Any) -> Any:
    """Set this thread's rounding direction: 0 toward zero, 1 to nearest even (LLVM's numbers)."""
    if mode != types.int32:
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(32)])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.set.rounding"), args)
        return context.get_dummy_value()

    return types.void(types.int32), codegen


set_rounding: Any = intrinsic(_set_rounding)


def cpu_features() -> set[str]:
    """Return the features that kernels are compiled for, as LLVM names them: ``"avx512f"``, ``"fma"``.

    Numba's NUMBA_CPU_NAME and NUMBA_CPU_FEATURES are honoured, so that narrower machines can be tried out.
    """
    enabled = numba.core.registry.cpu_target.target_context.codegen()._tm_features
    return {feature[1:] for feature in enabled.split(",") if feature.startswith("+")}
