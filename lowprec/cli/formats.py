"""Commands on number formats: formats, cast."""

from __future__ import annotations

import math
from collections.abc import Sequence

import click

from .output import Cell, CommandError, emit, machine_readable

_FACTS = (
    "name", "bits", "exponent_bits", "mantissa_bits", "bias", "signed", "specials", "has_zero", "subnormals",
    "max", "min", "smallest_normal", "smallest_subnormal", "eps", "dynamic_range", "emax", "emin", "max_code",
    "inf_code", "nan_code", "source",
)  # fmt: skip


@click.command("formats")
@click.argument("name", required=False)
@click.option("--codes", is_flag=True, help="List all values by code (formats of up to 8 bits).")
@machine_readable
def formats_command(name: str | None, codes: bool) -> None:
    """List number formats, or show the details of one.

    Members of the P3109 family are found by name, p3109_k8p4se or binary8p4se.

    Example: lowprec formats e4m3fn --codes
    """
    from ..format.catalogue import formats

    if name is None:
        if codes:
            raise CommandError("missing NAME of a format for --codes, as in lowprec formats e4m3fn --codes")
        columns = ("name", "bits", "exponent bits", "mantissa bits", "bias", "max", "min normal", "min", "specials")
        rows: list[Sequence[Cell]] = [
            (
                f.name, f.bits, *(
                    None if fact in f.undefined_properties else getattr(f, fact)
                    for fact in ("exponent_bits", "mantissa_bits", "bias", "max", "smallest_normal")
                ), f.smallest_subnormal, f.specials,
            )
            for f in (formats[key] for key in formats)
        ]  # fmt: skip
        emit(columns, rows, "Formats")
        return
    fmt = formats[name]
    if not codes:
        about: list[Sequence[Cell]] = [
            (fact, None if fact in fmt.undefined_properties else getattr(fmt, fact)) for fact in _FACTS
        ]
        about.insert(1, ("also called", ", ".join(formats.aliases(fmt.name))))
        emit(("property", "value"), about, fmt.name)
        return
    if fmt.bits > 8:
        raise CommandError(f"NAME must be a format of at most 8 bits with --codes, got {fmt.name} with {fmt.bits}")
    width = min(16, 1 << fmt.bits)
    values = [float(value) for value in fmt.values()]
    lines: list[Sequence[Cell]] = [
        (f"0x{start:02x}", *values[start : start + width]) for start in range(0, len(values), width)
    ]
    emit(("code", *(f"+{i:x}" for i in range(width))), lines, f"{fmt.name}: values by code")


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("values", nargs=-1, required=True)
@click.option("--to", "target", metavar="FORMAT", help="Format to encode in; see lowprec formats.  [required]")
@click.option("--rounding", metavar="NAME", help="up, toward_zero, stochastic ...  [default: the format's]")
@click.option("--policy", metavar="NAME", help="Policy for overflow, Inf and NaN: ocp_sat, ml_dtypes, torch_2_13 ...")
@click.option("--seed", type=click.IntRange(min=0), help="Seed of stochastic rounding.")
@machine_readable
def cast(
    values: tuple[str, ...],
    target: str | None,
    rounding: str | None,
    policy: str | None,
    seed: int | None,
) -> None:
    """Encode VALUES in a format and print the codes.

    Values are read as float64 and rounded once: decimal (0.1), hexadecimal (0x1.8p3), inf or nan.

    Example: lowprec cast 0.1 1e9 -inf --to e4m3fn --policy ocp_sat
    """
    numbers = [_number(value) for value in values]
    if target is None:
        raise CommandError("missing option --to FORMAT; see lowprec formats")
    from ..format.catalogue import formats

    fmt = formats[target]
    import numpy as np

    from ..cast.casts import decode, encode

    x = np.array(numbers, dtype=np.float64)
    codes = encode(x, fmt, rounding=rounding, policy=policy, seed=seed)
    digits = -(-fmt.bits // 4)
    rows = []
    for number, code, result in zip(numbers, codes.tolist(), decode(codes, fmt).tolist(), strict=True):
        error = (result - number) / abs(number) if number and np.isfinite(number) and np.isfinite(result) else None
        rows.append((number, f"0x{code:0{digits}x}", f"{code:0{fmt.bits}b}", result, error))
    emit(("value", "code", "bits", "result", "relative error"), rows, f"Cast to {fmt.name}")


def _number(text: str) -> float:
    """Parse a number; other arguments with a leading dash are unknown options (-1 is a number)."""
    try:
        number = float.fromhex(text) if "0x" in text.lower() else float(text)
    except OverflowError:
        number = math.inf
    except ValueError:
        if text.startswith("-"):
            raise CommandError(f"unknown option {text!r}; see lowprec cast --help") from None
        raise CommandError(
            f"VALUE must be a number (decimal, hexadecimal such as 0x1.8p3, inf or nan), got {text!r}"
        ) from None
    if math.isinf(number) and "inf" not in text.lower():
        raise CommandError(f"VALUE must be within float64, or inf, got {text!r}")
    return number
