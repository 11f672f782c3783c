"""Commands on numbers and arrays: formats, cast, quantize, gemm, logfmt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .cli_output import Cell, CommandError, emit, machine_readable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def _load_array(path: str, *, dimensions: int | None = None) -> NDArray[np.float32]:
    """Read a .npy file of floats."""
    import numpy as np

    try:
        array = np.load(path, allow_pickle=False)
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}") from None
    except (ValueError, EOFError):
        raise CommandError(f"{path}: not a .npy file of numbers") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu":
        raise CommandError(
            f"{path}: a .npy file of real numbers is needed, this holds {getattr(array, 'dtype', 'several arrays')}"
        )
    if dimensions is not None and array.ndim != dimensions:
        raise CommandError(f"{path}: {dimensions} dimensions are needed, the shape is {array.shape}")
    if array.size == 0:
        raise CommandError(f"{path}: the array is empty, its shape is {array.shape}")
    return np.ascontiguousarray(array, dtype=np.float32)


def _writable_file(path: str | None) -> None:
    """Refuse a result file that cannot be written before any work is done."""
    if path is None:
        return
    parent = Path(path).absolute().parent
    if Path(path).is_dir():
        raise CommandError(f"{path}: is a folder, a file is needed")
    from .study.store import check_writable

    if not parent.is_dir():
        raise CommandError(f"{path}: the folder {str(parent)!r} does not exist")
    check_writable(parent)


_FACTS = (
    "name", "bits", "exponent_bits", "mantissa_bits", "bias", "signed", "specials", "has_zero", "max", "min",
    "smallest_normal", "smallest_subnormal", "eps", "dynamic_range", "emax", "emin", "max_code", "inf_code", "nan_code",
    "source",
)  # fmt: skip


@click.command("formats")
@click.argument("name", required=False)
@click.option("--grid", is_flag=True, help="All values, 16 codes a row (formats of at most 8 bits).")
@machine_readable
def formats_command(name: str | None, grid: bool, as_json: bool, as_csv: bool) -> None:
    """List the number formats, or tell all about one.

    Members of the P3109 family are found by name, p3109_k8p4se or binary8p4se.
    """
    from .formats import formats

    if name is None:
        if grid:
            raise CommandError("--grid needs a format: lowprec formats e4m3fn --grid")
        columns = ("name", "bits", "exp.", "man.", "bias", "max", "min normal", "min", "specials")
        rows: list[Sequence[Cell]] = [
            (
                f.name, f.bits, f.exponent_bits, f.mantissa_bits, f.bias, f.max, f.smallest_normal,
                f.smallest_subnormal, f.specials,
            )
            for f in (formats[key] for key in formats)
        ]  # fmt: skip
        emit(columns, rows, "Formats", as_json, as_csv)
        return
    fmt = formats[name]
    if not grid:
        about: list[Sequence[Cell]] = [(fact, getattr(fmt, fact)) for fact in _FACTS]
        about.insert(1, ("also called", ", ".join(formats.aliases(fmt.name))))
        emit(("property", "value"), about, fmt.name, as_json, as_csv)
        return
    if fmt.bits > 8:
        raise CommandError(f"--grid is for formats of at most 8 bits, {fmt.name} has {fmt.bits}")
    width = min(16, 1 << fmt.bits)
    values = [float(value) for value in fmt.values()]
    lines: list[Sequence[Cell]] = [
        (f"0x{start:02x}", *values[start : start + width]) for start in range(0, len(values), width)
    ]
    emit(("code", *(f"+{i:x}" for i in range(width))), lines, f"{fmt.name}: values by code", as_json, as_csv)


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("values", nargs=-1, required=True)
@click.option("--to", "target", required=True, metavar="FORMAT", help="Format to encode in.")
@click.option("--rounding", default="nearest_even", show_default=True, help="up, down, toward_zero, stochastic ...")
@click.option("--policy", help="Overflow, Inf and NaN: ocp_sat, ml_dtypes, torch_2_13, cuda_satfinite ...")
@click.option("--seed", type=click.IntRange(min=0), help="For stochastic rounding.")
@machine_readable
def cast(
    values: tuple[str, ...],
    target: str,
    rounding: str,
    policy: str | None,
    seed: int | None,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Encode VALUES in a format and show the codes."""
    from .formats import formats

    fmt = formats[target]
    numbers = []
    for value in values:
        try:
            numbers.append(float.fromhex(value) if "0x" in value.lower() else float(value))
        except (ValueError, OverflowError):
            raise CommandError(f"{value!r} is not a number (decimal, hexadecimal like 0x1.8p3, inf or nan)") from None
    import numpy as np

    from .cast import decode, encode

    x = np.array(numbers, dtype=np.float64)
    codes = encode(x, fmt, rounding=rounding, policy=policy, seed=seed)
    digits = -(-fmt.bits // 4)
    rows = []
    for number, code, result in zip(numbers, codes.tolist(), decode(codes, fmt).tolist(), strict=True):
        error = (result - number) / abs(number) if number and np.isfinite(number) and np.isfinite(result) else None
        rows.append((number, f"0x{code:0{digits}x}", f"{code:0{fmt.bits}b}", result, error))
    emit(("value", "code", "bits", f"in {fmt.name}", "relative error"), rows, f"Cast to {fmt.name}", as_json, as_csv)


@click.command()
@click.argument("file")
@click.option("--recipe", metavar="NAME", help="A named quantizer: dsv3, mxfp8, nvfp4_te ... (docs/quantizers.md).")
@click.option("--to", "target", metavar="FORMAT", help="Element format, the recipe's or e4m3fn by default.")
@click.option("--granularity", help="tensor, row, column, 1x128, 128x128 ..., the recipe's or 1x128 by default.")
@click.option("--scale", type=click.Choice(["fp32", "ue8m0"]), help="Scales, the recipe's or fp32 by default.")
@click.option("--out", metavar="FILE", help="Save codes and scale as .npz.")
@machine_readable
def quantize(
    file: str,
    recipe: str | None,
    target: str | None,
    granularity: str | None,
    scale: str | None,
    out: str | None,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Quantize a matrix (.npy) with block scales.

    The error is reported, codes and scales are saved if asked for.
    """
    _writable_file(out)
    x = _load_array(file, dimensions=2)
    from .metrics import compare
    from .scaling import quantize as quantize_array

    if recipe is None and target is None:
        target = "e4m3fn"
    q = quantize_array(x, target, granularity, recipe=recipe, scale=scale)  # type: ignore[arg-type]  # checked by click
    row: dict[str, Any] = {"shape": "x".join(map(str, x.shape)), "bits per value": float(q.bits_per_value)}
    row.update(_comparison(compare(q.dequantize(), x)))
    emit(tuple(row), [tuple(row.values())], f"{file} in {q.format}, {q.granularity}", as_json, as_csv)
    if out is not None:
        _save(out, codes=q.codes, scale=q.scale)


@click.command()
@click.argument("a_file", metavar="A")
@click.argument("b_file", metavar="B")
@click.option("--format", "target", default="e4m3fn", show_default=True, help="Format of both operands.")
@click.option("--accumulator", default="hopper_fp8", show_default=True, help="Tensor core to emulate.")
@click.option(
    "--promote-every", type=int, default=128, show_default=True, help="Products between two promotions to FP32."
)
@click.option("--out", metavar="FILE", help="Save the product as .npy.")
@machine_readable
def gemm(
    a_file: str,
    b_file: str,
    target: str,
    accumulator: str,
    promote_every: int,
    out: str | None,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Multiply two matrices (.npy) as a tensor core would.

    A is [M, K] and B [N, K]: the product A B^T is compared with the exact one. A is quantized in tiles of 1x128, B in
    blocks of 128x128.
    """
    _writable_file(out)
    a, b = _load_array(a_file, dimensions=2), _load_array(b_file, dimensions=2)
    from .gemm import gemm as multiply
    from .metrics import compare
    from .scaling import quantize as quantize_array

    qa, qb = quantize_array(a, target, granularity="1x128"), quantize_array(b, target, granularity="128x128")
    d = multiply(qa, qb, accumulator=accumulator, promote_every=promote_every)
    exact = multiply(qa, qb, accumulator="exact")
    rows = [
        {"against": "exact product of the quantized operands", **_comparison(compare(d, exact))},
        {"against": "float64 product of A and B", **_comparison(compare(d, a.astype("f8") @ b.astype("f8").T))},
    ]
    emit(tuple(rows[0]), [tuple(row.values()) for row in rows], f"{accumulator}, {target}", as_json, as_csv)
    if out is not None:
        _save(out, d)


@click.command()
@click.argument("file")
@click.option("--bits", type=int, default=None, help="Bits per value: 8, or 10 in mode deepep, by default.")
@click.option("--tile", type=int, default=128, show_default=True, help="Values per tile, along the last axis.")
@click.option("--mode", type=click.Choice(["paper", "deepep"]), default="paper", show_default=True, help="Definition.")
@click.option(
    "--rounding", type=click.Choice(["linear", "log", "logmean", "stochastic"]), default="linear", show_default=True,
    help="Where thresholds lie.",
)  # fmt: skip
@click.option("--clamp-octaves", type=int, default=32, show_default=True, help="Largest range of a tile.")
@click.option("--seed", type=int, default=0, show_default=True, help="For stochastic rounding.")
@click.option("--out", metavar="FILE", help="Save the bytes that lowprec.logfmt.from_bytes reads.")
@machine_readable
def logfmt(
    file: str, bits: int | None, tile: int, mode: str, rounding: str, clamp_octaves: int, seed: int, out: str | None,
    as_json: bool, as_csv: bool,
) -> None:  # fmt: skip
    """Encode an array (.npy) in LogFMT.

    The error and the size are reported. Mode deepep first rounds the values to bfloat16.
    """
    _writable_file(out)
    x = _load_array(file)
    from . import logfmt as codec
    from .cast import round_to
    from .metrics import compare

    if mode == "deepep":
        x = round_to(x, "bfloat16")
    options: dict[str, Any] = {"rounding": rounding, "clamp_octaves": clamp_octaves, "seed": seed}
    z = codec.encode(x, bits, tile, mode, **options)  # type: ignore[call-overload]  # click has checked the mode
    row: dict[str, Any] = {"shape": "x".join(map(str, x.shape)), "bits per value": float(z.bits_per_value)}
    row.update(_comparison(compare(z.decode(), x)))
    title = f"{file} in LogFMT-{10 if mode == 'deepep' else z.bits}, mode {mode}, {rounding} rounding"
    emit(tuple(row), [tuple(row.values())], title, as_json, as_csv)
    if out is not None:
        from .moe.checkpoint import write_atomically

        write_atomically(out, z.to_bytes())
        click.echo(f"wrote {out}", err=True)


def _comparison(row: Any) -> dict[str, Any]:
    """Return the outcome of `compare` as plain cells."""
    from .study.store import plain

    values: dict[str, Any] = plain(row)
    return values


def _save(path: str, array: Any = None, **arrays: Any) -> None:
    """Write .npy or .npz in one move."""
    import io

    import numpy as np

    from .moe.checkpoint import write_atomically

    content = io.BytesIO()
    if arrays:
        np.savez(content, **arrays)
    else:
        np.save(content, array)
    write_atomically(path, content.getvalue())
    click.echo(f"wrote {path}", err=True)
