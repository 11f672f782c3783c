"""Record what PyTorch and Triton compute on this machine's GPU: sums, norms, softmax and products.

    python reference_data/capture/capture_torch.py OUT.npz    # on the machine with the GPU; PyTorch and Liger-Kernel

The inputs are exact: `bell` makes them from integers. The file has raw words, named by operation, dtype and shape: the
first row of a norm, all results of sums, and the first rows and columns of products. Its metadata has the versions, the
kernels that computed each product, and the numbers of rows at which the first row of a product changes.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

DTYPES = ("float32", "bfloat16", "float16")
NORM_SIZES = (100, 1024, 2049)
SUM_SIZES = (1, 7, 33, 64, 100, 128, 1000, 1024, 2048, 3000, 4096, 5000, 7168)
SUM_ROWS = (1, 2, 3, 4, 8, 16, 17, 64)
SHAPES = ((64, 64, 64), (64, 128, 128), (128, 128, 512), (64, 256, 1024), (16, 512, 4096), (128, 128, 7168),
          (1, 256, 4096), (8, 1024, 2048), (256, 512, 2048))  # fmt: skip
SGEMM_SHAPES = (*SHAPES, (33, 136, 320))
ROWS, COLUMNS = 4, 16
#: Rows and columns of results with scales of blocks at which orders of the scales' products have other bits.
PLACES = {
    (128, 128, 512): ((38, 62), (31, 34)), (128, 128, 7168): ((50, 57, 98, 124), (68, 122, 69, 29)),
    (256, 512, 2048): ((88, 106, 117, 120, 137, 144, 244, 245), (343, 448, 276, 506, 46, 255, 273, 384)),
}  # fmt: skip
TALL = ((4096, 4096), (7168, 2048), (1536, 7168), (512, 16384))
COUNTS = (*range(1, 34), 40, 48, 63, 64, 65, 96, 127, 128, 129, 192, 256, 384, 512, 1024, 2048)


def bell(seed: int, *shape: int, scale: float = 1.0) -> NDArray[np.float32]:
    """Return sums of four integers of 14 bits, times a power of two and a scale."""
    rng = np.random.default_rng([seed, *shape])
    total = rng.integers(-8192, 8192, (4, *shape)).sum(0).astype(np.float32)
    return total * np.float32(2.0**-13) * np.float32(scale)


def positive(seed: int, *shape: int) -> NDArray[np.float32]:
    """Return scales of at least 0.1."""
    return np.abs(bell(seed, *shape)) + np.float32(0.1)


class Recorder:
    """Results of one GPU, as words on the CPU."""

    def __init__(self) -> None:
        import torch

        self.torch, self.words, self.kernels = torch, dict[str, NDArray[Any]](), dict[str, list[str]]()

    def tensor(self, x: NDArray[Any], dtype: str) -> Any:
        """Return an array on the GPU, rounded to a dtype."""
        return self.torch.from_numpy(np.ascontiguousarray(x)).cuda().to(getattr(self.torch, dtype))

    def words_of(self, t: Any) -> NDArray[Any]:
        """Return the bits of a tensor."""
        kind = self.torch.int16 if t.element_size() == 2 else self.torch.int32
        found: NDArray[Any] = t.detach().cpu().contiguous().view(kind).numpy()
        return found

    def product(self, name: str, call: Callable[[], Any]) -> None:
        """Keep the first rows and columns of a product, and the names of its kernels."""
        with self.torch.profiler.profile() as found:
            self.words[name] = self.words_of(call())[:ROWS, :COLUMNS]
            self.torch.cuda.synchronize()
        names = [event.key for event in found.key_averages()]
        self.kernels[name] = [key for key in names if "gemm" in key or "nvjet" in key]


def record_norms(to: Recorder) -> None:
    """Record the first of two rows of norms and softmax functions, and of their gradients."""
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    torch = to.torch
    for dtype in DTYPES:
        for n in NORM_SIZES:
            x, dy = to.tensor(bell(1, 2, n, scale=3), dtype).requires_grad_(), to.tensor(bell(2, 2, n), dtype)
            weight, bias = to.tensor(bell(3, n) + 1, dtype), to.tensor(bell(4, n), dtype)

            def llama(x: Any = x, weight: Any = weight) -> Any:
                h = x.to(torch.float32)
                return weight * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)

            calls: dict[str, Callable[[], Any]] = {
                "torch_cuda_softmax": lambda x=x: torch.softmax(x, -1),
                "torch_cuda_log_softmax": lambda x=x: torch.log_softmax(x, -1),
                "torch_cuda_rms_norm": lambda x=x, w=weight, n=n: torch.rms_norm(x, (n,), w, 1e-6),
                "torch_cuda_layer_norm": lambda x=x, w=weight, b=bias, n=n: torch.layer_norm(x, (n,), w, b, 1e-5),
                "llama_rms_norm_cuda": llama,
                "liger_rms_norm": lambda x=x, w=weight: LigerRMSNormFunction.apply(x, w, 1e-6, 0.0, "llama", False),
            }
            for name, call in calls.items():
                x.grad = None
                y = call()
                y.backward(dy)
                to.words[f"{name}/{dtype}/{n}/y"] = to.words_of(y)[0]
                to.words[f"{name}/{dtype}/{n}/dx"] = to.words_of(x.grad)[0]


def record_sums(to: Recorder) -> None:
    """Record sums of rows."""
    for n in SUM_SIZES:
        for rows in SUM_ROWS:
            to.words[f"sum/{rows}/{n}"] = to.words_of(to.tensor(bell(5, rows, n, scale=3), "float32").sum(-1))


def record_products(to: Recorder) -> None:
    """Record products of 16-bit numbers, TF32, float32, and FP8 with scales per tensor, per row and per block."""
    torch = to.torch
    for m, n, k in SGEMM_SHAPES:
        a, b = to.tensor(bell(10, m, k), "float32"), to.tensor(bell(11, n, k), "float32").t()
        to.product(f"sgemm/{m}x{n}x{k}", functools.partial(torch.mm, a, b))
    for m, n, k in SHAPES:
        for dtype in DTYPES:
            torch.backends.cuda.matmul.allow_tf32 = dtype == "float32"
            a, b = to.tensor(bell(10, m, k), dtype), to.tensor(bell(11, n, k), dtype).t()
            wide = {} if dtype == "float32" else {"out_dtype": torch.float32}
            to.product(f"mm/{dtype}/{m}x{n}x{k}", lambda a=a, b=b, wide=wide: torch.mm(a, b, **wide))
        x, y = (to.tensor(bell(s, size, k, scale=8), "float8_e4m3fn") for s, size in ((10, m), (11, n)))
        one = tuple(to.tensor(np.float32(v).reshape(()), "float32") for v in (0.0173, 1.37))
        rows = to.tensor(positive(12, m, 1), "float32"), to.tensor(positive(13, 1, n), "float32")
        for kind, scales in (("tensor", one), ("row", rows)):
            for fast in (False, True):
                name = f"scaled/{kind}/{'fast' if fast else 'slow'}/{m}x{n}x{k}"
                to.product(name, lambda x=x, y=y, s=scales, fast=fast: torch._scaled_mm(
                    x, y.t(), *s, out_dtype=torch.float32, use_fast_accum=fast))  # fmt: skip
        if k % 128 == 0:  # scales per 1x128 in both operands, and per 128x128 in the second
            sa = to.tensor(positive(14, k // 128, m), "float32").t()
            for kind, size in (("block", n), ("block128", 1))[: 2 if n == 128 else 1]:
                sb = to.tensor(positive(15, k // 128, size), "float32")
                call: Callable[[], Any] = functools.partial(
                    torch._scaled_mm, x, y.t(), sa, sb, out_dtype=torch.bfloat16
                )
                to.product(f"scaled/{kind}/{m}x{n}x{k}", call)
                if (m, n, k) in PLACES:
                    to.words[f"scaled/{kind}/{m}x{n}x{k}/places"] = to.words_of(call())[PLACES[m, n, k]]


def find_changes(to: Recorder) -> dict[str, list[int]]:
    """Return the numbers of rows at which the first row of a bfloat16 product changes."""
    found = {}
    for n, k in TALL:
        b, a = to.tensor(bell(16, n, k), "bfloat16").t(), to.tensor(bell(17, 2048, k), "bfloat16")
        rows = [to.words_of(to.torch.mm(a[:m], b)[:1]).tobytes() for m in COUNTS]
        found[f"{n}x{k}"] = [m for m, now, before in zip(COUNTS[1:], rows[1:], rows, strict=False) if now != before]
    return found


def main() -> None:
    """Record everything and write the file."""
    to = Recorder()
    for record in (record_norms, record_sums, record_products):
        record(to)
    meta = {"gpu": to.torch.cuda.get_device_name(), "torch": to.torch.__version__, "kernels": to.kernels,
            "changes": find_changes(to)}  # fmt: skip
    np.savez_compressed(sys.argv[1], meta=np.array(json.dumps(meta)), **to.words)


if __name__ == "__main__":
    main()
