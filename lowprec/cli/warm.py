"""The command `warm`: compile all kernels in advance."""

from __future__ import annotations

from collections.abc import Callable

import click

#: Blocks of quantizers to compile in addition to their defaults.
_BLOCKS = ("1x16", "1x32", "1x128", "128x1", "128x128", "row", "tensor")


@click.command()
def warm() -> None:
    """Compile all kernels and cache them on disk.

    A kernel is otherwise compiled when a call first needs it, once per version of the package. Compiling everything
    in the catalogues takes a few minutes the first time and a few seconds afterwards.
    """
    from rich.console import Console

    from .. import _jit
    from ..study.run.progress import display

    if _jit.cache_folder is None:
        click.echo("no folder for kernels can be written: they are compiled in every process (see LOWPREC_CACHE_DIR)")
        raise SystemExit(1)
    seen: set[int] = set()
    with display(Console(stderr=True)) as shown:

        def report(count: int) -> None:
            seen.add(count)
            shown.compiling(count)

        with _jit.compiling(report):
            for name, work in _WORK.items():
                shown.stage(name)
                work()
    click.echo(f"{max(seen, default=0)} functions compiled; kernels are in {_jit.cache_folder}")


def _cast() -> None:
    import numpy as np

    import lowprec as lp

    x = np.linspace(-2, 2, 96, dtype=np.float32).reshape(3, 32)
    for name in lp.formats.names():
        fmt = lp.formats[name]
        for rounding in lp.roundings.names():
            seed = 0 if lp.roundings[rounding].is_stochastic else None
            for values in (x, x.astype(np.float64)):
                codes = lp.encode(values, fmt, rounding=rounding, seed=seed)
                lp.round_to(values, fmt, rounding=rounding, seed=seed)
        lp.decode(codes, fmt)
        if fmt.bits <= 16:
            lp.unpack(lp.pack(codes, fmt.bits), fmt.bits, codes.size)


def _quantize() -> None:
    import numpy as np

    import lowprec as lp

    x = np.ones((128, 256), np.float32)
    for name in lp.quantizers.names():
        q = lp.quantizers[name]
        if q.amax_history_len is not None:
            lp.DelayedScaling(name).quantize(x)
            continue
        for block in (q.granularity, *map(lp.Granularity.parse, _BLOCKS)):
            if q.has_row_scales and 1 not in (block.rows, block.columns):
                continue
            own = q.with_(granularity=block)
            lp.quantize_with_transpose(x, own)
            lp.quantize(x, own).dequantize()
            lp.quantize_dequantize(x, own)
            if isinstance(q.rule, lp.AmaxRule) and q.rule.four_over_six is None:
                lp.quantize(x, own, rounding="stochastic", seed=0)


def _multiply() -> None:
    import numpy as np

    import lowprec as lp
    from lowprec.attn.paired import FlashMla
    from lowprec.attn.tiles import SquareSchedule

    x = np.ones((64, 256), np.float32)
    for name in lp.accumulators.names():
        machine = lp.accumulators[name]
        for fmt in machine.input_formats or (lp.formats["e4m3fn"], lp.formats["e2m1fn"]):
            if machine.dtype == np.float64:
                lp.mma(x.astype(np.float64), x.astype(np.float64), accumulator=machine)
                continue
            if machine.scale_format is None:
                codes = lp.encode(x, fmt)
                lp.mma(codes, codes, accumulator=machine, a_format=fmt, b_format=fmt)
            if fmt.bits > 16:
                continue
            rule = lp.AmaxRule(
                "block_scale_only" if machine.scale_format and machine.scale_format.mantissa_bits else "amax/max"
            )
            spec = lp.Quantizer(
                format=fmt, granularity=lp.Granularity(1, machine.scale_block or 128),
                scale_format=machine.scale_format or lp.formats["float32"], rule=rule,
            )  # fmt: skip
            lp.gemm(lp.quantize(x, spec), lp.quantize(x, spec), accumulator=machine)
    lp.matmul_f32(x, x)
    for name in lp.attentions.names():
        kernel = lp.attentions[name]
        d, dv = kernel.key_tiles[0].sizes if kernel.schedule.has_fixed_sizes else (64, 64)
        q = np.ones((64, max(d, dv)), np.float32)
        lp.attention(
            q[:, :d],
            q[:, :d],
            q[:, :dv],
            kernel=kernel,
            window=None if isinstance(kernel.schedule, FlashMla | SquareSchedule) else (8, 0),
        )


def _encode() -> None:
    import numpy as np

    import lowprec as lp

    x = np.ones((4, 512), np.float32)
    for codec in map(lp.codecs.get, lp.codecs.names()):
        codec.round_trip(np.ones((4, getattr(codec, "columns_multiple", 512)), np.float32))
    for bits in (8, 10):
        lp.logfmt.encode(x, bits).decode()
    lp.compare(x, x)


def _train() -> None:
    import lowprec as lp

    for name in lp.recipes.names():
        lp.train(config="nano", recipe=name, steps=1, evaluate=False)


#: Functions that run every kernel once.
_WORK: dict[str, Callable[[], None]] = {
    "casts": _cast, "block scales": _quantize, "products": _multiply, "codecs": _encode, "training": _train
}  # fmt: skip
