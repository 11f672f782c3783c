"""Commands on codecs and costs: codecs, costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from .output import Cell, CommandError, emit, machine_readable

TABLES = ("models", "all-to-all", "nodes", "published")


def _codec(text: str) -> str | float:
    """Read a codec's name, or bits per value."""
    try:
        return float(text)
    except ValueError:
        return text


@click.command("codecs")
@click.option("--columns", type=click.IntRange(min=1), default=7168, show_default=True, help="Values per row.")
@machine_readable
def codecs_command(columns: int) -> None:
    """List codecs and their encoded size."""
    from ..codec import codecs

    rows: list[Sequence[Cell]] = []
    for name in codecs:
        codec = codecs[name]
        fits = columns % getattr(codec, "columns_multiple", 1) == 0
        size = codec.row_bytes(columns) if fits else None
        share = size / codecs["bf16"].row_bytes(columns) if size else None
        rows.append((name, codec.bits_per_value, size, share, getattr(codec, "description", "")))
    titles = ("codec", "bits per value", "bytes per row", "relative to BF16", "description")
    emit(titles, rows, f"Codecs: bits with scales, rows of {columns} values")


#: Options of each table; others are refused.
_READS = {
    "models": {"names", "kv_codec", "sequence"},
    "all-to-all": {"names", "machine", "dispatch_codec", "combine_codec", "tokens", "dim", "effective_bandwidth"},
    "nodes": {"names", "machine", "dispatch_codec", "tokens"},
    "published": set(),
}


def _reject_unused_options(table: str) -> None:
    from click.core import ParameterSource

    context = click.get_current_context()
    for option in context.command.params:
        name = option.name or ""
        if name in {"table", "as_json", "as_csv", "help"} or name in _READS[table]:
            continue
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            tables = " and ".join(other for other, reads in _READS.items() if name in reads)
            raise CommandError(f"{option.opts[0]} has no effect on the table {table}; it is for {tables}")


_HELP = """Estimate memory, FLOPs and traffic by format.

\b
models      memory and operations of models: parameters, KV cache, training
all-to-all  dispatch and combine of a model on a machine, for every codec
nodes       traffic between nodes with and without limited routing
published   every published number, next to ours

CODEC|BITS is a name of `lowprec codecs`, or bits per value.

Example: lowprec costs all-to-all --combine-codec logfmt10
"""
_WHOLE = click.IntRange(min=1)


@click.command(help=_HELP)
@click.argument("table", type=click.Choice(TABLES), default="models")
@click.option("--model", "names", multiple=True, metavar="NAME|FILE.toml", help="Model; in models it may be repeated.")
@click.option(
    "--hardware", "machine", default="h800_ib400", show_default=True, metavar="NAME|FILE.toml", help="GPUs and links."
)
@click.option(
    "--dispatch-codec", default="fp8_1x128", show_default=True, metavar="CODEC|BITS", help="Codec of dispatch."
)
@click.option("--combine-codec", multiple=True, metavar="CODEC|BITS", help="Codec of experts' outputs.  [default: all]")
@click.option("--kv-codec", default="bf16", show_default=True, metavar="CODEC|BITS", help="Codec of the KV cache.")
@click.option("--sequence", type=_WHOLE, default=4096, show_default=True, help="Length of training sequences.")
@click.option("--tokens", type=_WHOLE, help="Tokens per GPU.  [default: 32 in all-to-all, 4096 in nodes]")
@click.option("--dim", type=_WHOLE, help="Model width to use instead of the model's; the paper uses 7000.")
@click.option("--effective-bandwidth", is_flag=True, help="Use measured bandwidths instead of peak ones.")
@machine_readable
def costs(
    table: str,
    names: tuple[str, ...],
    machine: str,
    dispatch_codec: str,
    combine_codec: tuple[str, ...],
    kv_codec: str,
    sequence: int,
    tokens: int | None,
    dim: int | None,
    effective_bandwidth: bool,
) -> None:
    """Print one of the tables that the help text lists."""
    _reject_unused_options(table)
    from .. import costs as library
    from ..costs import models

    if table == "models":
        emit(*_models(list(names) or list(models), _codec(kv_codec), sequence))
    elif table == "all-to-all":
        for name in _one(names):
            there = _codec(dispatch_codec)
            emit(*_all_to_all(name, machine, there, combine_codec, tokens or 32, dim, effective_bandwidth))
    elif table == "nodes":
        for name in _one(names):
            emit(*_nodes(name, machine, _codec(dispatch_codec), tokens or 4096))
    else:
        columns = ("source", "quantity", "printed", "ours", "agrees", "note")
        rows: list[Sequence[Cell]] = [
            (item.source, item.quantity, item.published, item.compute(), "yes" if item.agrees else "NO", item.note)
            for item in library.published
        ]
        emit(columns, rows, "Published costs")


def _count(number: float) -> int | float:
    """Return an integer as int: tables print all of its digits."""
    return int(number) if number.is_integer() else number


def _one(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(names) > 1:
        raise CommandError(f"MODEL must be one model for this table, got {', '.join(names)}")
    return names or ("deepseek_v3",)


_Table = tuple[Sequence[str], list[Sequence[Cell]], str]


def _models(names: Sequence[str], kv: str | float, sequence: int) -> _Table:
    from ..costs import find_model, kv_cache_bytes, training_flops

    columns = (
        "model", "parameters (B)", "active (B)", "KV bytes per token", "training GFLOPs per token",
        "paper GFLOPs per token",
    )  # fmt: skip
    rows: list[Sequence[Cell]] = []
    for name in names:
        shape = find_model(name)
        flops = (training_flops(shape, sequence, method=method) / 1e9 for method in ("consistent", "paper"))
        rows.append(
            (
                shape.name,
                shape.parameters / 1e9,
                shape.active_parameters / 1e9,
                _count(kv_cache_bytes(shape, kv)),
                *flops,
            )
        )
    return columns, rows, f"Models: KV cache in {kv}, sequences of {sequence}"


def _all_to_all(
    name: str, machine: str, dispatch: str | float, combine: Sequence[str], tokens: int, dim: int | None,
    effective_bandwidth: bool,
) -> _Table:  # fmt: skip
    from ..codec import codecs
    from ..costs import bits_per_value, decode_limit, find_hardware, find_model

    shape, gpu = find_model(name), find_hardware(machine)
    back = [_codec(text) for text in combine] or sorted(codecs, key=lambda codec: -bits_per_value(codec))
    options: dict[str, Any] = {"tokens": tokens, "dim": dim, "use_effective_bandwidth": effective_bandwidth}
    base = decode_limit(shape, gpu, dispatch, 16, **options)
    columns = (
        "combine", "bits per value", "dispatch bytes per token", "combine bytes per token", "all-to-all (us)",
        "TPOT (ms)", "tokens per second", "speedup over BF16",
    )  # fmt: skip
    rows: list[Sequence[Cell]] = []
    for codec in back:
        limit = decode_limit(shape, gpu, dispatch, codec, **options)
        rows.append((
            codec if isinstance(codec, str) else f"{codec:g} bits", bits_per_value(codec),
            _count(limit.dispatch_bytes / tokens), _count(limit.combine_bytes / tokens), limit.all_to_all_s * 1e6,
            limit.tpot_s * 1e3, limit.tokens_per_s, base.tpot_s / limit.tpot_s,
        ))  # fmt: skip
    sent = dispatch if isinstance(dispatch, str) else f"{dispatch:g} bits"
    return columns, rows, f"{shape.name} on {gpu.name}: dispatch in {sent}, {tokens} tokens per GPU"


def _nodes(name: str, machine: str, codec: str | float, tokens: int) -> _Table:
    from ..costs import find_hardware, find_model, node_traffic, uniform_nodes

    shape, gpu = find_model(name), find_hardware(machine)
    if not shape.experts:
        raise CommandError(f"MODEL must have experts, got {shape.name!r} without")
    groups, kept = shape.expert_groups, shape.topk_groups
    cases = (
        ("one row for each expert", float(shape.top_k)),
        (f"experts on {groups} nodes, uniform", uniform_nodes(shape.experts, shape.top_k, groups).mean),
        (f"limited to {kept} nodes, at most", float(min(kept, shape.top_k))),
        (f"limited to {kept} nodes, uniform", uniform_nodes(shape.experts, shape.top_k, groups, kept).mean),
    )
    columns = (
        "routing",
        "nodes per token",
        "inter-node bytes per token",
        "intra-node bytes per token",
        "inter-node (us)",
        "intra-node (us)",
        "total (us)",
    )
    rows: list[Sequence[Cell]] = []
    for words, count in cases:
        cost = node_traffic(shape, gpu, codec, nodes_per_token=count, tokens=tokens)
        rows.append((
            words, count, _count(cost.scale_out_bytes / tokens), _count(cost.scale_up_bytes / tokens),
            cost.scale_out_s * 1e6, cost.scale_up_s * 1e6, cost.seconds * 1e6,
        ))  # fmt: skip
    sent = codec if isinstance(codec, str) else f"{codec:g} bits"
    return columns, rows, f"{shape.name} on {gpu.name}: one direction of {tokens} tokens per GPU, {sent}"
