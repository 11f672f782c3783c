"""Commands on arrays in files: quantize, gemm, attention, logfmt."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .output import CommandError, emit, machine_readable, progress_bar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def _load_array(path: str, *, dimensions: int | None = None) -> NDArray[np.float32]:
    """Read a .npy file of floats."""
    import numpy as np

    from .._files.npy import read_npy

    array = read_npy(path, "a .npy file of numbers")
    if array.dtype.kind not in "fiu":
        held = str(array.dtype)
        if held in ("|V1", "|V2"):  # the kind that NumPy gives dtypes of ml_dtypes
            held += ", bytes without a type: np.save forgets what bfloat16 and FP8 are, save array.astype('float32')"
        raise CommandError(f"{path} must hold real numbers, got {held}")
    if dimensions is not None and array.ndim != dimensions:
        raise CommandError(f"{path} must have {dimensions} dimensions, got shape {array.shape}")
    if array.size == 0:
        raise CommandError(f"{path} must not be empty, got shape {array.shape}")
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(array, dtype=np.float32)
    if array.dtype.kind == "f" and array.dtype.itemsize > 4:
        beyond = np.isinf(values) & np.isfinite(array)
        if beyond.any():
            first = array[beyond][0]
            raise CommandError(
                f"{path} must hold numbers within float32, got {int(beyond.sum())} beyond, the first {first:.6g}"
            )
    return values


def _warn_nonfinite(path: str, values: NDArray[np.float32]) -> None:
    """Warn on stderr if a file holds NaN or Inf: errors are not finite unless such values are preserved."""
    import numpy as np

    wrong = ~np.isfinite(values)
    if wrong.any():
        at = ", ".join(str(i) for i in np.argwhere(wrong)[0])
        click.echo(
            f"note: {path} holds {int(wrong.sum())} NaN or Inf among {values.size} values, the first at [{at}]; "
            "errors count them where they were not kept",
            err=True,
        )


def _writable_file(path: str | None, *inputs: str | None) -> None:
    """Raise an error, before any work, if a result file cannot be written or is an input of the command."""
    if path is None:
        return
    for file in inputs:
        if file is not None and _same_file(path, file):
            raise CommandError(f"{path} is an input of the command; name another file for the result")
    parent = Path(path).absolute().parent
    if Path(path).is_dir():
        raise CommandError(f"{path} is a folder; name a file")
    from ..study.run.store import check_writable

    if not parent.is_dir():
        raise CommandError(f"{path} cannot be written: the folder {str(parent)!r} does not exist")
    check_writable(parent)


def _same_file(path: str, other: str) -> bool:
    try:
        return os.path.samefile(path, other)
    except (OSError, ValueError):  # a path does not exist, so the paths differ
        return False


@click.command()
@click.argument("file")
@click.argument("spec", default="e4m3fn 1x128")
@click.option("--out", metavar="FILE", help="Save codes, scales and metadata as .npz.")
@machine_readable
def quantize(file: str, spec: str, out: str | None) -> None:
    """Quantize a matrix (.npy) with block scales.

    SPEC is a quantizer (mxfp8, nvfp4_te ...; see lowprec quantizers) or a format with a block and a scale format
    ("e4m3fn 128x128 ue8m0"). The default is "e4m3fn 1x128".

    Prints the quantization error: the fields of lowprec.compare, sqnr in dB. With --out, saves codes (one per value),
    float32 scales, tensor_scale where there is one, and format, granularity, scale_format and quantizer as text. A
    value is scale * decode(code), times tensor_scale.

    Example: lowprec quantize x.npy mxfp8 --out q.npz
    """
    _writable_file(out, file)
    x = _load_array(file, dimensions=2)
    _warn_nonfinite(file, x)
    from ..measure.comparison import compare
    from ..scaling.quantize import quantize as quantize_array

    q = quantize_array(x, spec)
    row: dict[str, Any] = {"shape": "x".join(map(str, x.shape)), "bits per value": float(q.bits_per_value)}
    row.update(_comparison(compare(q.dequantize(), x)))
    made_by = "" if q.quantizer is None else q.quantizer.name
    by = made_by and f"{made_by}: "
    title = f"{file} in {by}{q.format}, {q.granularity}, {q.scale_format} scales"
    emit(tuple(row), [tuple(row.values())], title)
    if out is not None:
        metadata = {"format": q.format.name, "granularity": str(q.granularity), "scale_format": q.scale_format.name}
        more = {} if q.tensor_scale is None else {"tensor_scale": q.tensor_scale}
        _save(out, codes=q.codes, scale=q.scale, **more, **metadata, quantizer=made_by)


def _promotion(text: str) -> Any:
    """Read the value of --promote-every: a number, auto or none."""
    if text in ("auto", "none"):
        return None if text == "none" else text
    try:
        return int(text)
    except ValueError:
        raise CommandError(f"--promote-every must be an integer, auto or none, got {text!r}") from None


@click.command()
@click.argument("a_file", metavar="A")
@click.argument("b_file", metavar="B")
@click.option(
    "--format", "target", metavar="NAME", help="Format of both operands.  [default: e4m3fn, or the quantizer's]"
)
@click.option("--quantizer", metavar="NAME", help="Quantizer of both operands; see lowprec quantizers.")
@click.option(
    "--accumulator", default="hopper_fp8", show_default=True, metavar="NAME", help="See lowprec accumulators."
)
@click.option(
    "--promote-every", metavar="N|auto|none", default="auto", show_default=True,
    help="Promote to float32 every N products; auto: the accumulator's default, else 128.",
)  # fmt: skip
@click.option("--out", metavar="FILE", help="Save the product as .npy.")
@machine_readable
def gemm(
    a_file: str,
    b_file: str,
    target: str | None,
    quantizer: str | None,
    accumulator: str,
    promote_every: str,
    out: str | None,
) -> None:
    """Multiply two matrices (.npy) as a tensor core does.

    A is [M, K] and B is [N, K]. Prints the error of A B^T against the exact product of the quantized operands, or the
    float64 product where there is no exact one: the fields of lowprec.compare, sqnr in dB. Without --quantizer, A is
    quantized in tiles of 1x128 and B in blocks of 128x128; formats of more than 8 bits have no scales.

    Example: lowprec gemm a.npy b.npy --accumulator hopper_fp8 --promote-every 128
    """
    length = _promotion(promote_every)
    _writable_file(out, a_file, b_file)
    a, b = _load_array(a_file, dimensions=2), _load_array(b_file, dimensions=2)
    if a.shape[1] != b.shape[1]:
        raise CommandError(f"{a_file} [M, K] and {b_file} [N, K] must have the same K, got {a.shape} and {b.shape}")
    _warn_nonfinite(a_file, a)
    _warn_nonfinite(b_file, b)
    from ..format.catalogue import formats
    from ..measure.comparison import compare

    if quantizer is None and formats[target or "e4m3fn"].bits > 8:
        if length not in ("auto", None):
            raise CommandError(f"--promote-every must be auto or none with {target}, which has no scales, got {length}")
        d, exact, words = _instruction(a, b, str(target), accumulator)
    else:
        d, exact, words = _scaled_product(a, b, target, quantizer, accumulator, length)
    rows = [
        {"reference": f"{words} product of the quantized operands", **_comparison(compare(d, exact))},
        {"reference": "float64 product of A and B", **_comparison(compare(d, _float64_product(a, b)))},
    ]
    title = f"{accumulator}, {quantizer or target}"
    emit(tuple(rows[0]), [tuple(row.values()) for row in rows], title)
    if out is not None:
        _save(out, d)


@click.command()
@click.argument("q_file", metavar="Q")
@click.argument("k_file", metavar="K")
@click.argument("v_file", metavar="V")
@click.option("--kernel", default="fa3_fp8", show_default=True, metavar="NAME", help="See lowprec attentions.")
@click.option("--causal", is_flag=True, help="Hide the keys after a query.")
@click.option(
    "--window", type=(int, int), metavar="LEFT RIGHT", help="Keys beside its position that a query sees; -1: all."
)
@click.option("--mask", metavar="FILE", help="Keys that each query sees, [..., M, N], true or not; see below.")
@click.option("--scale", type=float, help="Factor of the scores.  [default: 1 / sqrt(D)]")
@click.option("--softcap", type=float, metavar="CAP", help="Limit of the scaled scores, as CAP * tanh(score / CAP).")
@click.option("--splits", type=int, default=1, show_default=True, metavar="N", help="Ranges of keys that are combined.")
@click.option("--page-size", type=int, metavar="N", help="Keys in a page of the KV cache.  [default: no pages]")
@click.option("--out", metavar="FILE", help="Save the output as .npy.")
@machine_readable
def attention(
    q_file: str, k_file: str, v_file: str, kernel: str, mask: str | None, out: str | None, **options: Any
) -> None:
    """Compute attention (.npy) as a kernel does.

    Q is [..., M, D], K [..., N, D], V [..., N, Dv]; they are rounded to the kernel's operand formats. Prints the error
    against softmax in float64 on the rounded operands, and how many probabilities saturated or became zero. --mask is
    for the kernels of PyTorch (sdpa_math, torch_cpu_flash_f32, torch_cpu_flash_bf16) and flashmla_fp8, which take any
    mask; the file holds booleans.

    Example: lowprec attention q.npy k.npy v.npy --kernel vllm_fa3_fp8
    """
    _writable_file(out, q_file, k_file, v_file, mask)
    from .._files.npy import read_npy
    from ..attn.attention import attention as attend
    from ..attn.attention import softmax_attention
    from ..attn.catalogue import attentions
    from ..cast.casts import round_to
    from ..measure.comparison import compare

    chosen = attentions[kernel]
    q, k = (round_to(_load_array(path), chosen.operands) for path in (q_file, k_file))
    v = round_to(_load_array(v_file), chosen.values_format)
    options["mask"] = None if mask is None else read_npy(mask, "a .npy file of booleans")
    with progress_bar("rows") as progress:
        result = attend(q, k, v, kernel=chosen, progress=progress, **options)
    known = {name: options[name] for name in ("causal", "window", "mask", "scale", "softcap")}
    exact = softmax_attention(q, k, v, **known)
    counts = {"P saturated": int(result.saturated.sum()), "P underflowed": int(result.underflowed.sum())}
    row = {"reference": "float64 softmax of the rounded operands", **_comparison(compare(result.out, exact)), **counts}
    emit(tuple(row), [tuple(row.values())], kernel)
    if out is not None:
        _save(out, result.out)


_Products = tuple["NDArray[np.float32]", "NDArray[Any]", str]


def _instruction(a: NDArray[np.float32], b: NDArray[np.float32], target: str, accumulator: str) -> _Products:
    """Multiply in a format of more than 8 bits: no scales, one instruction."""
    from ..cast.casts import decode, encode
    from ..tensorcore.mma import mma

    codes = [encode(x, target) for x in (a, b)]
    d = mma(*codes, accumulator=accumulator, a_format=target, b_format=target)
    return d, _float64_product(decode(codes[0], target), decode(codes[1], target)), "float64"


def _scaled_product(
    a: NDArray[np.float32],
    b: NDArray[np.float32],
    target: str | None,
    quantizer: str | None,
    accumulator: str,
    length: Any,
) -> _Products:
    """Quantize and multiply; also return the exact product of the same operands and its description."""
    from ..scaling.quantize import quantize as quantize_array
    from ..tensorcore.gemm import gemm as multiply

    if quantizer is not None:
        spec = quantizer if target is None else f"{quantizer} {target}"
        qa, qb = (quantize_array(x, spec) for x in (a, b))
    else:
        target = target or "e4m3fn"
        qa, qb = quantize_array(a, f"{target} 1x128"), quantize_array(b, f"{target} 128x128")
    d = multiply(qa, qb, accumulator=accumulator, promote_every=length)
    try:
        return d, multiply(qa, qb, accumulator="exact"), "exact"
    except ValueError:  # chains of 128 products do not suit the scales
        return d, _float64_product(qa.dequantize(), qb.dequantize()), "float64"


def _float64_product(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[Any]:
    import numpy as np

    with np.errstate(invalid="ignore"):
        product: NDArray[Any] = a.astype(np.float64) @ b.astype(np.float64).T
    return product


@click.command()
@click.argument("file")
@click.option("--bits", type=int, metavar="3..16", help="Bits per value.  [default: 8; 10 in variant deepep]")
@click.option(
    "--tile", type=int, default=128, show_default=True, metavar="N", help="Values per tile, along the last axis."
)
@click.option(
    "--variant",
    type=click.Choice(["paper", "deepep"]),
    default="paper",
    show_default=True,
    help="Definition of the paper, or of DeepEP's kernel.",
)
@click.option(
    "--rounding", type=click.Choice(["linear", "log", "logmean", "stochastic"]), default="linear", show_default=True,
    help="Rounding thresholds between two codes.",
)  # fmt: skip
@click.option(
    "--clamp-octaves", type=int, default=32, show_default=True, metavar="1..32", help="Largest range of a tile."
)
@click.option(
    "--nonfinite", type=click.Choice(["raise", "poison"]), default="raise", show_default=True,
    help="Refuse NaN and Inf, or make their tile NaN.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of stochastic rounding.")
@click.option("--out", metavar="FILE", help="Save bytes for lowprec.logfmt.from_bytes.")
@machine_readable
def logfmt(
    file: str, bits: int | None, tile: int, variant: str, rounding: str, clamp_octaves: int, nonfinite: str,
    seed: int, out: str | None
) -> None:  # fmt: skip
    """Encode an array (.npy) in LogFMT.

    Prints the error (the fields of lowprec.compare, sqnr in dB) and the size. Variant deepep first rounds the
    values to bfloat16.

    Example: lowprec logfmt x.npy --bits 10 --out x.logfmt
    """
    _writable_file(out, file)
    import numpy as np

    x = _load_array(file)
    from .. import logfmt as codec
    from ..cast.casts import round_to
    from ..measure.comparison import compare

    if variant == "deepep":
        x = round_to(x, "bfloat16")
    options: dict[str, Any] = {"rounding": rounding, "clamp_octaves": clamp_octaves, "seed": seed}
    if nonfinite != "raise":
        options["nonfinite"] = nonfinite
    elif variant == "paper" and not np.isfinite(x).all():
        at = ", ".join(str(i) for i in np.argwhere(~np.isfinite(x))[0])
        raise CommandError(f"{file} must be finite, got NaN or Inf at [{at}]; --nonfinite poison makes the tile NaN")
    z = codec.encode(x, bits, tile, variant, **options)  # type: ignore[call-overload]  # click checked it
    row: dict[str, Any] = {"shape": "x".join(map(str, x.shape)), "bits per value": float(z.bits_per_value)}
    row.update(_comparison(compare(z.decode(), x)))
    title = f"{file} in LogFMT-{10 if variant == 'deepep' else z.bits}, variant {variant}, {rounding} rounding"
    emit(tuple(row), [tuple(row.values())], title)
    if out is not None:
        from .._files import write_bytes

        write_bytes(out, z.to_bytes())
        click.echo(f"wrote {out}", err=True)


def _comparison(row: Any) -> dict[str, Any]:
    """Return the result of `compare` as plain cells."""
    from .._files import to_jsonable

    values: dict[str, Any] = to_jsonable(row)
    return values


def _save(path: str, array: Any = None, **arrays: Any) -> None:
    """Write a .npy or .npz file atomically."""
    from .._files.npy import write_npy, write_npz

    if arrays:
        write_npz(path, arrays)
    else:
        write_npy(path, array)
    click.echo(f"wrote {path}", err=True)
