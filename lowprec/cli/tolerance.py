"""The commands `tolerance`, `criterion` and `mutate`: derived tolerances, and tests that can fail."""

from __future__ import annotations

import sys
from typing import Any

import click

from .arrays import _load_array, _promotion
from .output import emit, machine_readable, naming, output_format

_QUANTIZERS = ("e4m3fn 1x128", "e4m3fn 128x128")


@click.command("tolerance")
@click.argument("a_file", metavar="A")
@click.argument("b_file", metavar="B")
@click.option("--result", metavar="FILE", help="Result (.npy) to judge; the exit code is 1 if it is not accepted.")
@click.option("--quantizer", metavar="SPEC", help="Quantizer of both operands; see lowprec quantize.")
@click.option(
    "--accumulator", default="hopper_fp8", show_default=True, metavar="NAME", help="See lowprec accumulators."
)
@click.option("--promote-every", metavar="N|auto|none", default="auto", show_default=True, help="As in lowprec gemm.")
@click.option("--out-format", default="bfloat16", show_default=True, metavar="NAME", help="Format of the result.")
@click.option("--order", type=click.Choice(["chains", "any"]), default="chains", show_default=True, help="Order of K.")
@machine_readable
def tolerance_command(
    a_file: str,
    b_file: str,
    result: str | None,
    quantizer: str | None,
    accumulator: str,
    promote_every: str,
    out_format: str,
    order: str,
) -> None:
    """Derive atol and rtol of a product, or judge a result.

    A [M, K] and B [N, K] are .npy files of values before quantization. Prints the largest proven bound, the expected
    error, and the smallest atol and rtol against the exact product of the quantized operands that accept every right
    result: proven, and with one wrong refusal in a million.

    Example: lowprec tolerance a.npy b.npy --accumulator hopper_fp8 --result d.npy
    """
    from ..bounds.tolerance import tolerance
    from ..scaling.quantize import quantize

    values = [_load_array(file, dimensions=2) for file in (a_file, b_file)]
    specs = _QUANTIZERS if quantizer is None else (quantizer, quantizer)
    options: dict[str, Any] = {"promote_every": _promotion(promote_every), "out_format": out_format, "order": order}
    with naming(a_file, b_file):
        a, b = (quantize(x, spec) for x, spec in zip(values, specs, strict=True))
        t = tolerance(a, b, accumulator=accumulator, values=(values[0], values[1]), **options)
    verdict = None
    if result is not None:
        with naming(result):
            verdict = t.test(_load_array(result, dimensions=2))
    columns = ("correct results refused", "atol", "rtol", "largest bound", "expected rms error")
    import numpy as np

    bound = float(np.max(t.bound[np.isfinite(t.bound)], initial=0.0))
    known = t.expected[~np.isnan(t.expected)]
    expected = float(np.sqrt(np.square(known).mean())) if known.size else None
    pairs = (("never", t.atol_rtol()), ("1 in 10^6", t.atol_rtol(1e-6)))
    rows = [(name, pair.atol, pair.rtol, bound, expected) for name, pair in pairs]
    emit(columns, rows, f"{a_file} x {b_file}: {accumulator}, {out_format}")
    if verdict is None:
        return
    click.echo(f"{result}: {verdict}", err=bool(output_format()))
    if not verdict:
        sys.exit(1)


@click.command("criterion")
@click.argument("text", metavar="CRITERION")
@click.option("--m", default=128, show_default=True, help="Rows of A.")
@click.option("--n", default=256, show_default=True, help="Rows of B.")
@click.option("--k", default=4096, show_default=True, help="Length of the sums.")
@click.option("--data", default="normal", show_default=True, metavar="KIND[,KIND...]", help="Kinds of data, or all.")
@click.option("--draws", default=1, show_default=True, help="Operands to draw.")
@click.option(
    "--accumulator", default="hopper_fp8", show_default=True, metavar="NAME", help="See lowprec accumulators."
)
@click.option("--out-format", default="bfloat16", show_default=True, metavar="NAME", help="Format of the result.")
@machine_readable
def criterion_command(
    text: str, m: int, n: int, k: int, data: str, draws: int, accumulator: str, out_format: str
) -> None:  # fmt: skip
    """Measure which kernels a criterion of a test accepts.

    CRITERION is a measure with a limit ("calc_diff<1e-3", "cosine>0.99", "sqnr>20", "max_abs<0.1"), "allclose(RTOL,
    ATOL)", or the name of a public suite's criterion (deepgemm, vllm_cutlass, torchao, transformer_engine_fp8,
    triton_kernels ...). Prints the share of draws that the criterion accepts, for a correct kernel and every fault, by
    kind of data, with a 95 % interval (Clopper and Pearson). The correct kernel computes each draw in three orders of
    addition; the draw counts as accepted if all three results are.

    Example: lowprec criterion "calc_diff<1e-3" --m 128 --n 256 --k 4096 --data normal,positive
    """
    from ..bounds.data import data_kinds
    from ..bounds.faults import faults
    from ..bounds.power import criterion_power

    kinds = list(data_kinds) if data == "all" else data.split(",")
    found = {
        kind: criterion_power(
            text, m=m, n=n, k=k, data=kind, draws=draws, accumulator=accumulator, out_format=out_format
        )
        for kind in kinds
    }
    passes = {
        kind: {row.kernel: (row.passes, "{:.3f} to {:.3f}".format(*row.interval)) for row in power.rows}
        for kind, power in found.items()
    }
    names = ["right", *(name for name in faults if any(name in each for each in passes.values()))]
    rows = [(name, *(cell for kind in kinds for cell in passes[kind].get(name, (None, None)))) for name in names]
    columns = ("kernel", *(column for kind in kinds for column in (kind, f"{kind}, 95 %")))
    emit(columns, rows, f"Share that {text} accepts, {m}x{n}x{k}, {accumulator}, {out_format}")
    for kind, power in found.items():
        click.echo(f"{kind}: {power.sentence}", err=bool(output_format()))


@click.command("mutate", context_settings={"ignore_unknown_options": True})
@click.option("--target", required=True, metavar="MODULE:FUNCTION", help="Kernel to replace.")
@click.option("--fault", "names", multiple=True, metavar="NAME", help="Apply this fault only; may be repeated.")
@click.option("--timeout", default=600.0, show_default=True, help="Limit of one run, in seconds.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@machine_readable
def mutate_command(target: str, names: tuple[str, ...], timeout: float, command: tuple[str, ...]) -> None:
    """Run a test suite with faulty kernels.

    COMMAND is pytest and its arguments, after "--". The suite runs once with the correct kernel, which must pass, then
    once per fault of the catalogue, with the faulty kernel in place of --target. Prints whether the suite failed, and
    the number of tests that call the kernel and passed nevertheless. The exit code is 1 if a fault failed no test.

    Example: lowprec mutate --target package.kernels:matmul -- pytest tests/test_matmul.py
    """
    from ..bounds.faults import faults
    from ..bounds.mutate import mutate

    found = list(mutate(target, command, names, timeout=timeout))
    rows = [
        (each.fault, each.outcome, len(each.failed), len(each.passed), faults[each.fault].summary) for each in found
    ]
    emit(("fault", "suite", "tests that fail", "tests that pass", "the kernel"), rows, f"Faults of {target}")
    lived = [each for each in found if each.outcome == "lived"]
    for each in lived:
        click.echo(f"{each.fault}: no test failed, of {', '.join(each.passed)}", err=bool(output_format()))
    if any(faults[each.fault].vacuous for each in lived):
        click.echo("The suite is vacuous: it passes a kernel without any product.", err=bool(output_format()))
    if lived:
        sys.exit(1)
