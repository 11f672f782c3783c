"""The commands `reveal` and `invariance`: the order of additions of a function, and sizes at which it changes."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from .arrays import _writable_file
from .output import Cell, CommandError, count_progress, emit, machine_readable, output_format

if TYPE_CHECKING:
    from ..order.order import Order

_WIDTH = 60  # letters of an order in a table
_MOST = 1 << 16  # rows, and length of the sums
_DIGITS = 12
_FORMATS = click.Choice(["float16", "bfloat16", "float32", "float64"])


@click.command("reveal")
@click.argument("target", metavar="[MODULE:FUNCTION]", required=False)
@click.option("--n", type=click.IntRange(min=1), required=True, help="Number of elements.")
@click.option("--dot", is_flag=True, help="The function takes two vectors and returns their dot product.")
@click.option("--dtype", type=_FORMATS, default="float32", show_default=True, help="Dtype of the elements.")
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), default=60, show_default=True, help="Time for the calls."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of probes and samples.")
@click.option("--svg", metavar="FILE", help="Write a drawing.")
@click.option("--write-probes", metavar="FILE", help="Write inputs for a function that Python cannot call.")
@click.option("--answers", multiple=True, metavar="FILE", help="Probes with their outputs d; may be repeated.")
@click.option("--out-format", type=_FORMATS, help="Format of outputs in answers.  [default: the dtype]")
@machine_readable
def reveal_command(
    target: str | None, n: int, dot: bool, dtype: str, seconds: float, seed: int, svg: str | None,
    write_probes: str | None, answers: tuple[str, ...], out_format: str | None,
) -> None:  # fmt: skip
    """Find the order in which a function adds its numbers.

    MODULE:FUNCTION takes a vector of --n numbers and returns their sum, for example numpy:sum; modules of the current
    folder are found, too. Prints the order, and on how many random inputs it gives the function's bits. If the
    function's answers are not those of one order, the exit code is 1 and the reason is printed.

    Without a function, --write-probes writes inputs: array a [P, n], with --dot also b. Compute the P outputs, add them
    to the file as d [P], and pass it with --answers. With --answers, --write-probes writes the next inputs.

    Example: lowprec reveal numpy:sum --n 64
    """
    from ..order.probed import RevealError
    from ..order.recorded import first_probes, next_probes
    from ..order.reveal import reveal

    if (target is None) == (not answers and write_probes is None):
        raise CommandError("reveal: MODULE:FUNCTION must be given alone, or --write-probes or --answers, got "
                           + ("none" if target is None else "both"))  # fmt: skip
    if out_format is not None and not answers:
        raise CommandError(f"reveal: --out-format must be given with --answers, got {out_format} alone")
    if svg is not None and target is None and not answers:
        raise CommandError("reveal: --svg must be given with MODULE:FUNCTION or --answers, got --write-probes")
    for path in (svg, write_probes):
        _writable_file(path, *answers)
    given: dict[str, Any] = {"dtype": dtype, "operands": 2 if dot else 1, "seed": seed}
    of_answers = {**given, "out_format": out_format}
    try:
        if target is not None:
            found: Order | dict[str, Any] = reveal(
                _function("reveal", target), n, seconds=seconds, progress=count_progress("reveal", "calls"), **given
            )
        elif answers:
            found = next_probes([_members(path) for path in answers], n, **of_answers)
        else:
            found = first_probes(n, **given)
    except RevealError as error:
        raise CommandError(str(error), exit_code=1) from error
    if isinstance(found, dict):
        _write_probes(found, write_probes)
        return
    rows = [("order", str(found)), ("arithmetic", found.arithmetic), ("from +0", "yes" if found.from_zero else "no"),
            ("source", found.source), ("validated against", found.validated_against)]  # fmt: skip
    emit(("", found.name) if not output_format() else ("name", "value"), rows, f"{found.n} elements")
    if svg is not None:
        from .._files import write_bytes

        write_bytes(svg, found.drawing().encode())


@click.command("invariance")
@click.argument("target", metavar="MODULE:FUNCTION|NORM")
@click.option("--k", type=click.IntRange(1, _MOST), default=512, show_default=True, help="Length of the sums.")
@click.option("--n", type=click.IntRange(min=1), default=64, show_default=True, help="Outputs of a row.")
@click.option("--rows", default="1-64", show_default=True, metavar="M[,M...]", help="Numbers of rows; 1-64 is a range.")
@click.option("--dtype", type=_FORMATS, default="float32", show_default=True, help="Dtype of the operands.")
@click.option("--operands", type=click.IntRange(1, 2), default=2, show_default=True,
              help="1: the function takes a matrix (M, k) alone, as softmax does.")  # fmt: skip
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), default=60, show_default=True, help="Time for one order."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the operands.")
@machine_readable
def invariance_command(
    target: str, k: int, n: int, rows: str, dtype: str, operands: int, seconds: float, seed: int
) -> None:  # fmt: skip
    """Find the batch sizes at which the bits of a row change.

    MODULE:FUNCTION takes matrices (M, k) and (n, k) and returns their product (M, n), or with --operands 1 a matrix
    (M, k) and returns M results. NORM is a name of lp.norms. Row 0 stays the same while M grows. Prints each M at which
    the row's bits change, or for a norm the order of its sum, the share of its outputs that do, and the order of
    additions before and after. The exit code is 1 if there is such an M.

    Examples: lowprec invariance numpy:inner --k 512 --rows 1-64;
    lowprec invariance vllm_rms_norm --k 4096 --rows 1-300
    """
    from ..norm.catalogue import norms
    from ..norm.invariance import norm_invariance
    from ..order.invariance import batch_invariance
    from ..order.probed import RevealError

    given: dict[str, Any] = {"sizes": _sizes(rows), "dtype": dtype, "seed": seed}
    try:
        if target in norms:
            _refuse_options_of_functions(target)
            found = norm_invariance(norms[target], k, **given)
        else:
            function = _function("invariance", target)
            found = batch_invariance(function, k, n, operands=operands, seconds=seconds, **given)
    except RevealError as error:
        raise CommandError(str(error), exit_code=1) from error
    short = not output_format()
    table: list[Sequence[Cell]] = []
    for change in found.changes:
        table.append((change.m, change.share, *_orders(change.before, change.after, short)))
        if change.reason:
            click.echo(f"M = {change.m}: {change.reason}", err=True)
    if table or not short:
        emit(("M", "share", "order before", "order from M on"), table, f"{found.name}, k = {k}, {dtype}")
    click.echo(found.sentence, err=not short)
    if found.changes:
        sys.exit(1)


def _refuse_options_of_functions(norm: str) -> None:
    from click.core import ParameterSource

    context = click.get_current_context()
    for name in ("n", "operands", "seconds"):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise CommandError(f"invariance: --{name} must be given with a function alone, got the norm {norm}")


def _orders(before: Order | None, after: Order | None, short: bool) -> list[str]:
    """Return two orders as text, with their arithmetic if it differs."""
    is_same = before is not None and after is not None and before.arithmetic == after.arithmetic
    texts = []
    for order in (before, after):
        text = "none found" if order is None else str(order)
        text = text if len(text) <= _WIDTH or not short else f"{text[:_WIDTH]}..."
        texts.append(text if order is None or is_same else f"{text}; {order.arithmetic}")
    return texts


def _sizes(text: str) -> list[int]:
    """Return the numbers of "1-4,8" as 1, 2, 3, 4, 8."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        is_number = first.isdecimal() and (last.isdecimal() or not dash) and len(first + last) <= _DIGITS
        if not is_number or not 1 <= int(first) <= int(last or first) <= _MOST:
            raise CommandError(
                f"invariance: --rows must be numbers from 1 to {_MOST:,} and ranges such as 1-64, got {text!r}"
            )
        found += range(int(first), int(last or first) + 1)
    return found


def _function(caller: str, target: str) -> Callable[..., Any]:
    """Return the function of MODULE:FUNCTION."""
    module, colon, path = target.partition(":")
    if not (module and colon and path):
        or_norm = " or a name of lp.norms" if caller == "invariance" else ""
        raise CommandError(f"{caller}: function must be MODULE:FUNCTION{or_norm}, got {target!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except (Exception, SystemExit) as error:  # a module may raise anything when it is imported
        raise CommandError(f"{caller}: function must exist, got {target!r}: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise CommandError(f"{caller}: function must be callable, got {target!r}, a {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def _members(path: str) -> dict[str, Any]:
    from .._files.npy import Archive

    with Archive(path, "an .npz of arrays a and d, with --dot also b") as held:
        return {name: held[name] for name in held.names}


def _write_probes(arrays: dict[str, Any], path: str | None) -> None:
    from .._files import write_bytes
    from .._files.npy import npz_bytes

    count, n = arrays["a"].shape
    if path is None:
        raise CommandError(
            f"reveal: --write-probes must be a file, since {count} more inputs are to be answered, got none"
        )
    write_bytes(path, npz_bytes(arrays))
    click.echo(f"wrote {path}: {count} inputs of {n} numbers; add their outputs as d [{count}]", err=True)
