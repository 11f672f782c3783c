"""Speed of block quantizers relative to a copy of the same bytes, with other packages for comparison.

    python benchmarks/quantizers.py [--markdown benchmarks/README.md] [--rows 4096] [--rounds 5]

Codes and scales of every case are compared with the oracle on a corner before anything is timed, and values with the
codes' own. Rates are of one thread and its CPU time; the ratio is to ``np.copyto`` of as many bytes in the same rounds:
4 read and as many written as the codes (1) or the values (4) take.
"""

from __future__ import annotations

import argparse
import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from common import Table, interleaved, machine_line, write_between_markers

import lowprec as lp
from lowprec.oracle import quantizers as oracle

COLUMNS = 4096
CASES: list[tuple[str, str | None, float]] = [  # quantizer, granularity, what is asked for
    ("dsv3_inference", None, 0.6), ("deepgemm", None, 0.6), ("te_block", None, 0.6),
    ("dsv3_inference", "128x128", 0.55), ("dsv3_inference", "128x1", 0.0), ("te_current", None, 0.0),
    ("mxfp8_floor", None, 0.45), ("mxfp8_rceil", None, 0.45), ("mxfp6_e2m3_floor", None, 0.45),
    ("mxfp4_floor", None, 0.45), ("nvfp4_te", None, 0.35), ("nvfp4_modelopt", None, 0.35), ("nvfp4_te_2d", None, 0.0),
    ("nvfp4_4over6", None, 0.1),
]  # fmt: skip


def check(x: np.ndarray, name: str, granularity: str | None) -> None:
    """Compare a corner with the oracle; the tensor's scale, if any, is that of the corner."""
    corner = np.ascontiguousarray(x[:3, :300])
    spec = f"{name} {granularity or ''}"
    q = lp.quantize(corner, spec)
    block = (q.granularity.rows, q.granularity.columns)
    codes, scales, _ = oracle.quantize(corner, name, block)
    if not (np.array_equal(q.codes, codes) and q.scale.tobytes() == scales.tobytes()):
        raise SystemExit(f"{name} {granularity}: not what the oracle says")
    whole = lp.quantize(x, spec)
    if not np.array_equal(lp.quantize_dequantize(x, spec), whole.dequantize()):
        raise SystemExit(f"{name} {granularity}: values are not those of the codes")


def best(works: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the best of three medians: other work on the machine only adds time."""
    runs = [interleaved(works, rounds) for _ in range(3)]
    return {name: min(run[name] for run in runs) for name in works}


def copies(size: int) -> dict[str, Callable[[], object]]:
    works: dict[str, Callable[[], object]] = {}
    for label, written in (("copy5", 1), ("copy8", 4)):
        source = np.random.default_rng(1).integers(0, 255, size * (4 + written) // 2, dtype=np.uint8)
        target = np.empty_like(source)
        works[label] = lambda source=source, target=target: np.copyto(target, source)
    return works


def ours(x: np.ndarray, rounds: int) -> list[list[str]]:
    rows = []
    values = np.empty_like(x)
    for name, granularity, wanted in CASES:
        check(x, name, granularity)
        spec = f"{name} {granularity or ''}"
        q = lp.quantize(x, spec)
        works = copies(x.size)
        works["codes"] = lambda q=q, spec=spec: lp.quantize(x, spec, out=q)
        works["values"] = lambda spec=spec: lp.quantize_dequantize(x, spec, out=values)
        works["decode"] = lambda q=q: q.dequantize(out=values)
        seconds = best(works, rounds)
        cells = [f"{name} {q.granularity}"]
        for work, copy in (("codes", "copy5"), ("values", "copy8"), ("decode", "copy5")):
            cells.append(f"{x.size / seconds[work] / 1e9:.2f} ({seconds[copy] / seconds[work]:.2f}x)")
        rows.append([*cells, f"{wanted:.2f}x" if wanted else ""])
    return rows


def peers(x: np.ndarray) -> list[list[str]]:
    """Time what is installed of the packages that quantize on a CPU, on an eighth of the rows."""
    if importlib.util.find_spec("torch") is None:
        return []
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    part = np.ascontiguousarray(x[: max(1, x.shape[0] // 8)])
    t = torch.from_numpy(part)
    works: dict[str, Callable[[], Any]] = {}

    def deepgemm() -> Any:
        tiles = t.view(t.shape[0], -1, 128)
        s = tiles.abs().amax(2).clamp(1e-4) / 448.0
        return (tiles * (1.0 / s.unsqueeze(2))).to(torch.float8_e4m3fn), s

    works["torch, DeepGEMM's arithmetic 1x128"] = deepgemm
    if importlib.util.find_spec("torchao") is not None:
        from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx
        from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale

        works["torchao MXFP8 floor"] = lambda: to_mx(t, torch.float8_e4m3fn, 32, ScaleCalculationMode.FLOOR)
        works["torchao MXFP8 rceil"] = lambda: to_mx(t, torch.float8_e4m3fn, 32, ScaleCalculationMode.RCEIL)
        works["torchao NVFP4"] = lambda: nvfp4_quantize(t, 16, per_tensor_amax_to_scale(t.abs().max()))
    if importlib.util.find_spec("modelopt") is not None:
        from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

        works["modelopt NVFP4"] = lambda: NVFP4QTensor.quantize(t, 16)
    works |= copies(part.size)
    seconds = best(works, 3)
    rates = {name: f"{part.size / s / 1e9:.3f} ({seconds['copy5'] / s:.3f}x)" for name, s in seconds.items()}
    return [[name, rate, "", "", ""] for name, rate in rates.items() if not name.startswith("copy")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4096, help="rows of 4096 values")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--markdown", type=Path, help="file whose section is replaced")
    options = parser.parse_args()
    lp.set_num_threads(1)
    x = np.random.default_rng(0).standard_normal((options.rows, COLUMNS), dtype=np.float32)
    table = Table(
        f"Quantizers, {options.rows} x {COLUMNS} standard normals",
        ("quantizer", "to codes", "to values", "codes to values", "target"),
        [*ours(x, options.rounds), *peers(x)],
        "G values/s (ratio to a copy of the same bytes), 1 thread, its CPU time, best of three medians; outputs given.",
    )
    table.show()
    if options.markdown:
        write_between_markers(options.markdown, "quantizers", f"{machine_line()}\n\n{table.markdown()}")


if __name__ == "__main__":
    main()
