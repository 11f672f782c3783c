"""Host of a benchmark: CPU features, kernels that other packages chose, and the FMA peak of this thread."""

from __future__ import annotations

import ctypes
import importlib
import time
from pathlib import Path
from typing import Any

#: Environment of a process that computes as a machine with AVX2 and FMA alone would, its BLAS too.
AVX2 = {
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": "+sse2,+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+avx,+avx2,+fma,+bmi,+bmi2,+f16c,+lzcnt",
    "OPENBLAS_CORETYPE": "Haswell",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
}
_TOLD = ("avx512f", "avx512bw", "avx512vnni", "avx512vpopcntdq", "avx512vbmi", "avx2", "fma", "f16c")


def lines() -> list[str]:
    """Describe the instruction sets that kernels are compiled for, and those chosen by NumPy's BLAS and PyTorch."""
    from lowprec import _jit

    features = _jit.cpu_features()
    told = [name for name in _TOLD if name in features]
    found = [f"lowprec: code for {' '.join(told) or 'none of ' + ' '.join(_TOLD)}", f"NumPy's BLAS: {_openblas()}"]
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return found
    return [*found, f"PyTorch {torch.__version__}: {torch.backends.cpu.get_cpu_capability()}"]


def _openblas() -> str:
    """Return version and core of the OpenBLAS in NumPy, or NumPy's description of another BLAS."""
    import numpy as np

    blas: dict[str, Any] = np.show_config(mode="dicts")["Build Dependencies"]["blas"]  # type: ignore[index, call-overload]
    text = f"{blas['name']} {blas['version']}"
    for library in Path(np.__file__).parents[1].glob("numpy.libs/*openblas*"):
        core = getattr(ctypes.CDLL(str(library)), "scipy_openblas_get_corename64_", None)
        if core is not None:
            core.restype = ctypes.c_char_p
            text += f", its {core().decode()} kernels"
    return text


def fma_peak() -> float:
    """Return the multiply-adds per second of chains of float32 FMA in registers, the best of many short runs."""
    from lowprec._jit import cgutils, cpu_features, intrinsic, ir, kernel, types
    from lowprec.kernels.vectors import F32, I32, VectorCode, fill

    lanes, chains, steps = 16 if "avx512f" in cpu_features() else 8, 12, 200_000
    vector = ir.VectorType(F32, lanes)

    def typed(typingctx: Any, count: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            code = VectorCode(builder)
            slots = [code.variable(fill(vector, float(i))) for i in range(chains)]
            x = code.splat(builder.sitofp(arguments[0], F32), vector)
            with cgutils.for_range(builder, arguments[0]):
                for slot in slots:
                    builder.store(code.call(f"llvm.fma.v{lanes}f32", vector, builder.load(slot), x, x), slot)
            total = builder.load(slots[0])
            for slot in slots[1:]:
                total = builder.fadd(total, builder.load(slot))
            return builder.extract_element(total, I32(0))

        return types.float32(types.intp), codegen

    chain = intrinsic(typed)

    def spin(count: int) -> Any:
        return chain(count)

    run = kernel(spin)
    run(10)
    best = 1.0
    for _ in range(60):
        start = time.thread_time()
        run(steps)
        best = min(best, time.thread_time() - start)
    return steps * chains * lanes / best
