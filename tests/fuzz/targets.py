"""All that is public and can be called, each once: its arguments, and what is documented of its result."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import objects
import sound
from calls import CATALOGUES, Arguments, Target
from draw import SMALL_FORMATS, Draw

import lowprec as lp
from lowprec import codec, costs, logfmt
from lowprec.measure import metrics

RESULTS: dict[str, Callable[[Arguments], tuple[Any, tuple[int, ...]]]] = {
    "encode": lambda given: (lp.formats.get(given["fmt"]).code_dtype, np.shape(given["x"])),
    **dict.fromkeys(("round_to", "quantize_dequantize", "hadamard"), lambda given: ("f4", np.shape(given["x"]))),
    "decode": lambda given: ("f4", np.shape(given["codes"])),
    "Format.ulp": lambda given: ("f8", np.shape(given["x"])),
    "pack": lambda given: ("u1", (-(-np.size(given["codes"]) * given["bits"] // 8),)),
    "unpack": lambda given: ("u1" if given["bits"] <= 8 else "u2", (given["count"],)),
    "quantize": lambda given: (
        lp.TensorSpec.parse(given["spec"]).format.code_dtype,
        np.shape(given["x"]),
    ),
    "gemm": lambda given: ("f4", (given["a"].shape[0], given["b"].shape[0])),
    "mma": lambda given: (lp.accumulators.get(given["accumulator"]).dtype, (len(given["a"]), len(given["b"]))),
    "matmul_f32": lambda given: ("f4", (len(given["a"]), len(given["b"]))),
    "sqnr": lambda given: (float, ()),
}


class Anywhere:
    """A folder whose files are never looked at."""

    def __truediv__(self, name: str) -> str:
        return name


def pair(**more: Any) -> Callable[[Draw], Arguments]:
    def drawn(draw: Draw) -> Arguments:
        shape = draw.shape()
        return {"actual": draw.values(shape), "reference": draw.values(shape), **more}

    return drawn


def method(name: str, cls: type, make: Callable[[Draw], Any], more: Callable[[Draw, Any], Arguments]) -> Target:
    """Return the call of a method of an object that is drawn."""
    of_class = getattr(cls, name.rpartition(".")[2])

    def call(_of: Any, **arguments: Any) -> Any:
        return of_class(_of, **arguments)

    def drawn(draw: Draw) -> Arguments:
        made = make(draw)
        return {"_of": made, **more(draw, made)}

    call.__signature__ = inspect.signature(of_class)  # type: ignore[attr-defined]
    call.__doc__, call.__module__ = of_class.__doc__, cls.__module__
    return Target(name, drawn, function=call)


def made(cls: type, catalogue: Any, use: Callable[[Any], Any]) -> Target:
    """Return the making of an object of fields, and its use."""
    return Target(cls.__name__, objects.fields(catalogue, cls), function=objects.used(cls, use))


def into(draw: Draw, coded: Any) -> Arguments:
    return {"out": draw.out(coded.shape, np.float32, coded.codes)} if draw.chance(0.5) else {}


def a_format(draw: Draw) -> lp.Format:
    return lp.formats[draw.of(SMALL_FORMATS)]


def targets(folder: Any) -> list[Target]:
    """Return all that is public and can be called."""
    quantize_with_transpose = objects.used(lp.quantize_with_transpose, lambda pair: pair, ("x", "spec"))
    grouped = objects.used(lp.grouped_gemm, lambda d: d, ("a", "b", "expert", "counts", "c", "accumulator"))
    check = objects.used(lp.check, lambda found: (repr(found), found.causes, found.tied))
    identify = objects.used(lp.identify, str, ("a", "b", "c", "d", "a_format", "b_format"))
    steps = objects.used(lambda **given: given, sound.delayed_steps, ("x", "rounding", "seed"))
    found = [
        Target("encode", sound.cast_arguments(True), 3),
        Target("round_to", sound.cast_arguments(False), 3),
        Target("decode", sound.decode_arguments, 3),
        Target("pack", sound.pack_arguments, 2),
        Target("unpack", sound.unpack_arguments, 2),
        Target("quantize", sound.quantize_arguments, 8),
        Target("quantize_dequantize", sound.quantize_dequantize_arguments, 6),
        Target("quantize_with_transpose", lambda d: {"x": d.values(d.shape(2)), "spec": sound.specification(d)},
               function=quantize_with_transpose),
        Target("check", sound.check_arguments, function=check),
        Target("hadamard", sound.hadamard_arguments),
        Target("gemm", sound.gemm_arguments, 8),
        Target("grouped_gemm", sound.grouped_gemm_arguments, function=grouped),
        Target("grouped_wgrad", sound.grouped_wgrad_arguments),
        Target("mma", sound.mma_arguments, 6),
        Target("attention", sound.attention_arguments, 4, objects.used(lp.attention, lambda found: found.out)),
        Target("attention_grad", sound.attention_grad_arguments, 1, objects.used(lp.attention_grad, lambda x: x.dq)),
        Target("Order", sound.order_fields, 0.5, objects.used(lp.Order, objects.use_order)),
        Target("reveal", {"function": lambda d: d.one(np.sum, np.max, np.mean), "n": lambda d: d.one(1, 5)}, 0.5,
               objects.used(lp.reveal, repr, ("function", "n", "dtype", "operands", "seed"))),
        Target("tolerance", sound.tolerance_arguments, 1, objects.used(lp.tolerance, repr)),
        Target("sum_tolerance", sound.sum_tolerance_arguments, 0.5, objects.used(lp.sum_tolerance, repr)),
        Target("quantize_tolerance", sound.quantize_tolerance_arguments, 0.5,
               objects.used(lp.quantize_tolerance, repr, ("x", "spec"))),
        Target("attention_tolerance", sound.attention_tolerance_arguments, 0.5,
               objects.used(lp.attention_tolerance, repr)),
        Target("identify", sound.identify_arguments, function=identify),
        Target("identify_attention", sound.identify_attention_arguments, 0.5, objects.used(lp.identify_attention, str)),
        Target("matmul_f32", sound.matmul_arguments),
        Target("prepack_b", sound.prepack_b_arguments),
        Target("checksum", sound.checksum_arguments),
        Target("compare", pair()),
        Target("sqnr", pair()),
        Target("get_num_threads", {}, 0.1),
        Target("set_num_threads", {"n": lambda d: d.one(1, 2)}, 0.3),
        Target(
            "use_kernel", {"name": "auto"}, 0.3, objects.used(lp.use_kernel, objects.use_kernel), always_hostile=True
        ),
        Target("train", {"config": "nano", "steps": 0}, 0.5, always_hostile=True),
        Target("logfmt.encode", sound.logfmt_arguments, 3),
        Target("logfmt.unpack", sound.unpack_logfmt_arguments, 2),
        Target("logfmt.from_bytes", {"data": lambda d: d.damaged(sound.encoded(d).to_bytes())}, 2),
        method("Quantized.requantize", lp.Quantized, sound.matrix, lambda d, _: {"spec": sound.specification(d)}),
        method("Quantized.convert", lp.Quantized, sound.matrix, lambda d, _: {"spec": sound.specification(d)}),
        method("Format.ulp", lp.Format, lambda d: lp.formats[d.of(lp.formats.names())],
               lambda d, _: {"x": d.values(d.shape(2))}),
        method("logfmt.LogFMT.decode", logfmt.LogFMT, sound.encoded, into),
        made(lp.Format, lp.formats, objects.use_format),
        made(lp.Policy, lp.policies, objects.use_policy),
        made(lp.Quantizer, lp.quantizers, objects.use_quantizer),
        made(lp.FusedSum, lp.accumulators, objects.use_accumulator),
        Target("AmaxRule", sound.rule_fields, 0.5),
        Target("TensorSpec", lambda d: {"format": d.fmt(16), "quantizer": d.entry(lp.quantizers)}, 0.5),
        made(lp.Recipe, lp.recipes, objects.use_recipe),
        made(lp.GemmLibrary, lp.gemm_libraries, objects.use_library),
        Target("TableFormat", sound.table_arguments, function=objects.used(lp.TableFormat, objects.use_format)),
        Target("Rounding", {"name": "mine"}, 0.5, objects.used(lp.Rounding, objects.use_rounding)),
        Target("Granularity", {"rows": lambda d: d.one(1, None, 7), "columns": lambda d: d.one(None, 128)}),
        Target("Granularity.parse", {"text": lambda d: d.one("1x128", "row", "tensor")}),
        method("Granularity.block", lp.Granularity, lambda d: lp.Granularity(1, 128), lambda d, g: {"shape": (3, 200)}),
        Target("Quantized", sound.quantized_fields),
        method("Quantized.dequantize", lp.Quantized, sound.matrix, into),
        Target("Quantized.load", {"path": lambda d: folder / d.one("good.npz", "cut.npz")}),
        *(Target(f"codec.{cls.__name__}", sound.codec_fields(cls), 0.5, objects.used(cls, objects.use_codec))
          for cls in (codec.BlockCodec, codec.LogFMTCodec, codec.CastCodec, codec.DeepEPCodec)),
        Target("codec", sound.codec_arguments, 2, sound.round_trip),
        Target("codec.from_bytes", sound.codec_bytes, 2, sound.read_bytes),
        Target("DelayedScaling", {"quantizer": lambda d: d.entry(lp.quantizers, ["te_delayed"])}, 0.5),
        Target("DelayedScaling.quantize", {"x": lambda d: d.values(d.shape(2))}, 0.5, steps),
        Target("Recipe.from_toml", {"text": sound.toml}),
        Target("stack", {"text": sound.stack_toml}, 3, objects.read_stack),
        Target("recording", sound.recording, 3, objects.read_recording),
        method("Format.value", lp.Format, a_format, lambda d, f: {"code": d.one(0, 1, 7)}),
        method("Format.nextafter", lp.Format, a_format, lambda d, f: {"x": f.max, "toward": d.one(0.0, 1e9)}),
    ]  # fmt: skip
    found += [_lookup(kind, catalogue) for kind, catalogue in CATALOGUES.items()]
    for name in _metrics():
        arguments = pair(**({"limit": 448.0} if name == "saturation" else {}))
        found.append(Target(f"metrics.{name}", arguments, 0.5, getattr(metrics, name)))
    functions = [name for name in costs.__all__ if callable(getattr(costs, name)) and name not in COST_RESULTS]
    return found + [Target(f"costs.{name}", COSTS.get(name, {}), 0.4) for name in functions]


#: What `lp.costs` returns, and nobody makes.
COST_RESULTS = {"DecodeLimit", "NodeTraffic", "PublishedFigure"}
COSTS: dict[str, Any] = {
    "GroupedAttention": {"heads": 8, "kv_heads": 2, "head_dim": 64},
    "LatentAttention": {"heads": 8, "q_rank": 64, "kv_rank": 32, "nope_dim": 16, "rope_dim": 8, "value_dim": 16},
    "Hardware": objects.fields(costs.hardware, costs.Hardware),
    "ModelShape": objects.fields(costs.models, costs.ModelShape),
    "NodesPerToken": {"fractions": (0.5, 0.5)},
    "achieved_flops": {"flops_per_token": 1e9, "tokens_per_day": 1e9, "gpus": 8},
    "deepep_bandwidth": {"seconds": 1e-4, "header": 16},
    "measured_nodes": {"chosen": lambda d: np.arange(16).reshape(4, 4), "experts": 16, "nodes": 4},
    "node_traffic": {"nodes_per_token": 3.5},
    "row_bytes": {"columns": lambda d: d.one(128, 7168, 1)},
    "uniform_nodes": {"experts": 64, "top_k": 8, "nodes": 8, "kept": 4},
}


def _lookup(kind: str, catalogue: Any) -> Target:
    def get(name: Any) -> Any:
        """Look a name up."""
        return repr(catalogue.get(name)), repr(catalogue[name] if isinstance(name, str) else None), name in catalogue

    get.__annotations__["name"] = f"str | {kind}"
    return Target(f"{kind} of the catalogue", {"name": lambda d: d.entry(catalogue)}, 0.5, get)


def _metrics() -> list[str]:
    """Return the measures that stand in the module: public functions of two arrays."""
    return [
        name
        for name, function in vars(metrics).items()
        if inspect.isfunction(function) and not name.startswith("_") and function.__module__ == metrics.__name__
        and "reference" in inspect.signature(function).parameters and name not in ("compare", "sqnr")
    ]  # fmt: skip
