"""All that is public and can be called."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import objects
import results
import sound
import whole
from calls import CATALOGUES, Arguments, Target
from draw import SMALL_FORMATS, Draw

import lowprec as lp
from lowprec import codec, costs, logfmt, metrics


class Anywhere:
    """A folder whose files are never looked at."""

    def __truediv__(self, name: str) -> str:
        return name


def targets(folder: Any) -> list[Target]:
    """Return all that is public and can be called."""
    found = [
        Target("encode", lp.encode, sound.cast_arguments("encode"), results.codes, 3),
        Target("round_to", lp.round_to, sound.cast_arguments("round_to"), results.like("x", "f4"), 3),
        Target("decode", lp.decode, sound.decode_arguments, results.like("codes", "f4"), 3),
        Target("pack", lp.pack, sound.pack_arguments, results.packed, 2),
        Target("unpack", lp.unpack, sound.unpack_arguments, results.unpacked, 2),
        Target("ulp", lp.ulp, lambda d: {"x": d.values(), "fmt": d.fmt()}, results.like("x", "f8")),
        Target("quantize", lp.quantize, sound.quantize_arguments, results.quantized, 8),
        Target("quantize_dequantize", lp.quantize_dequantize, sound.quantize_dequantize_arguments,
               results.like("x", "f4"), 6),
        Target("quantize_both", _both, lambda d: {"x": d.values(d.shape(2)), "fmt": d.fmt(16)}),
        Target("requantize", _requantize, lambda d: {"q": sound.matrix(d), "granularity": d.one("128x1", "tensor")}),
        Target("hadamard", lp.hadamard, sound.hadamard_arguments, results.like("x", "f4")),
        Target("gemm", lp.gemm, sound.gemm_arguments, results.product, 8),
        Target("grouped_gemm", _grouped, sound.grouped_gemm_arguments),
        Target("grouped_wgrad", _wgrad, sound.grouped_wgrad_arguments),
        Target("mma", lp.mma, sound.mma_arguments, results.instruction, 6),
        Target("matmul_f32", lp.matmul_f32, sound.matmul, results.matmul),
        Target("pack_operand", lp.pack_operand, sound.pack_operand_arguments),
        Target("checksum", lp.checksum, sound.checksum_arguments),
        Target("compare", lp.compare, sound.pair("a", "reference")),
        Target("sqnr", lp.sqnr, sound.pair("a", "reference"), results.number),
        Target("get_num_threads", lp.get_num_threads, lambda d: {}, None, 0.1),
        Target("set_num_threads", lp.set_num_threads, lambda d: {"n": d.one(1, 2)}, None, 0.3),
        Target("get_fused_kernel", lp.get_fused_kernel, lambda d: {}, None, 0.1),
        Target("set_fused_kernel", lp.set_fused_kernel, lambda d: {"name": "auto"}, None, 0.3, True),
        Target("using", _using, lambda d: {"kernel": "auto"}, None, 0.3, True),
        Target("load_config", lp.load_config, lambda d: {"path": folder / "missing"}, None, 0.5, True),
        Target("train", lp.train, lambda d: {"config": "nano", "steps": 0}, None, 0.5, True),
        Target("logfmt.encode", logfmt.encode, sound.logfmt_arguments, None, 3),
        Target("logfmt.unpack", logfmt.unpack, sound.logfmt_unpack, None, 2),
        Target("logfmt.from_bytes", logfmt.from_bytes, sound.from_bytes, None, 2),
        Target("logfmt.LogFMT.decode", sound.method(logfmt.LogFMT, "decode"), sound.on(sound.encoded, _decode_out)),
        *_made(lp.Format, lp.formats, objects.use_format),
        *_made(lp.Policy, lp.policies, objects.use_policy),
        *_made(lp.Quantizer, lp.quantizers, objects.use_quantizer),
        *_made(lp.Accumulator, lp.accumulators, objects.use_accumulator),
        *_made(lp.Recipe, lp.recipes, objects.use_recipe),
        Target("Rounding", objects.used(lp.Rounding, objects.use_rounding), sound.rounding, None, 0.5),
        Target("Granularity", lp.Granularity, lambda d: {"rows": d.one(1, None, 7), "columns": d.one(None, 128)}),
        Target("Granularity.parse", lp.Granularity.parse, lambda d: {"text": d.one("1x128", "row", "tensor")}),
        Target("Granularity.block", sound.method(lp.Granularity, "block"),
               sound.on(lambda d: lp.Granularity(1, 128), lambda d, g: {"shape": (3, 200)}), None, 0.5),
        Target("Quantized", lp.Quantized, sound.quantized_fields),
        Target("Quantized.dequantize", sound.method(lp.Quantized, "dequantize"),
               sound.on(sound.matrix, sound.dequantize)),
        Target("Quantized.load", lp.Quantized.load, lambda d: {"path": folder / d.one("good.npz", "cut.npz")}),
        *(Target(f"codec.{cls.__name__}", objects.used(cls, objects.use_codec), sound.codec_fields(cls), None, 0.5)
          for cls in (codec.BlockCodec, codec.LogFMTCodec, codec.CastCodec, codec.DeepEPCodec)),
        Target("codec", sound.round_trip, sound.codec_arguments, None, 2),
        Target("codec.from_bytes", sound.read_bytes, sound.codec_bytes, None, 2),
        Target("DelayedScaling", lp.DelayedScaling, sound.delayed, None, 0.5),
        Target("DelayedScaling.quantize", sound.delayed_steps, sound.step_arguments, None, 0.5),
        Target("Recipe.from_toml", lp.Recipe.from_toml, _toml),
        Target("Format.value", sound.method(lp.Format, "value"),
               sound.on(_format, lambda d, f: {"code": d.one(0, 1, 7)})),
        Target("Format.nextafter", sound.method(lp.Format, "nextafter"),
               sound.on(_format, lambda d, f: {"x": f.max, "toward": d.one(0.0, 1e9)})),
    ]  # fmt: skip
    found += _whole_tensors()
    for name, catalogue in CATALOGUES.items():
        found.append(_lookup(name, catalogue))
    for name in _metrics():
        more = {"limit": 448.0} if name == "saturation" else {}
        found.append(Target(f"metrics.{name}", getattr(metrics, name), sound.pair("a", "reference", **more), None, 0.5))
    found += _cost_targets()
    return found


def _whole_tensors() -> list[Target]:
    return [
        Target("check", _check, whole.check_arguments),
        Target("convert", lp.convert, whole.convert_arguments),
        Target("identify", _identify, whole.identify_arguments),
        Target("ms_eden", lp.ms_eden, whole.eden_arguments),
        Target("pack_e5m6", lp.pack_e5m6, whole.pack_arguments, None, 0.5),
        Target("unpack_e5m6", lp.unpack_e5m6, whole.unpack_arguments, None, 0.5),
        Target("TableFormat", objects.used(lp.TableFormat, objects.use_format), whole.table_arguments),
        *_made(lp.Library, lp.libraries, whole.use_library),
    ]


def _check(
    q: Any, values: Any, quantizer: Any = None, scale: Any = None, tensor_scale: Any = None, granularity: Any = None
) -> Any:
    found = lp.check(q, values, quantizer, scale=scale, tensor_scale=tensor_scale, granularity=granularity)
    return repr(found), found.causes, found.tied


def _identify(a: Any, b: Any, c: Any, d: Any, a_format: Any = None, b_format: Any = None) -> Any:
    return str(lp.identify(a, b, c, d, a_format=a_format, b_format=b_format))


def _made(cls: type, catalogue: Any, use: Callable[[Any], Any]) -> list[Target]:
    return [Target(cls.__name__, objects.used(cls, use), objects.fields(catalogue, cls))]


def _format(draw: Draw) -> lp.Format:
    return lp.formats[draw.of(SMALL_FORMATS)]


def _lookup(kind: str, catalogue: Any) -> Target:
    def get(name: Any) -> Any:
        return repr(catalogue.get(name)), repr(catalogue[name] if isinstance(name, str) else None), name in catalogue

    get.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter("name", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=f"str | {kind}")]
    )
    get.__doc__ = "Look a name up."
    return Target(f"{kind} of the catalogue", get, lambda d: {"name": d.entry(catalogue)}, None, 0.5)


def _metrics() -> list[str]:
    """Return the measures that stand in the module: public functions of two arrays."""
    return [
        name
        for name, function in vars(metrics).items()
        if inspect.isfunction(function) and not name.startswith("_") and function.__module__ == metrics.__name__
        and "reference" in inspect.signature(function).parameters and name not in ("compare", "sqnr")
    ]  # fmt: skip


def _both(x: Any, fmt: Any = None, granularity: Any = None, quantizer: Any = None) -> Any:
    return lp.quantize_both(x, fmt, granularity, quantizer=quantizer)


def _requantize(q: Any, granularity: Any) -> Any:
    return lp.requantize(q, granularity)


def _grouped(
    a: Any, b: Any, expert: Any = None, counts: Any = None, c: Any = None, accumulator: Any = "hopper_fp8"
) -> Any:
    return lp.grouped_gemm(a, b, expert=expert, counts=counts, c=c, accumulator=accumulator)


def _wgrad(dy: Any, x: Any, counts: Any, c: Any = None, align: Any = 128) -> Any:
    return lp.grouped_wgrad(dy, x, counts, c=c, align=align)


def _using(kernel: Any) -> Any:
    with lp.using(kernel=kernel):
        return lp.get_fused_kernel()


for _wrapper, _original in (
    (_both, lp.quantize_both), (_requantize, lp.requantize), (_grouped, lp.grouped_gemm), (_wgrad, lp.grouped_wgrad),
    (_using, lp.using), (_check, lp.check), (_identify, lp.identify), (sound.delayed_steps, lp.DelayedScaling.quantize),
):  # fmt: skip
    _annotations = {name: p.annotation for name, p in inspect.signature(lp.quantize).parameters.items()}
    _annotations |= {name: p.annotation for name, p in inspect.signature(lp.gemm).parameters.items()}
    _annotations |= {name: p.annotation for name, p in inspect.signature(_original).parameters.items()}
    _signature = inspect.signature(_wrapper)
    _wrapper.__signature__ = _signature.replace(  # type: ignore[attr-defined]
        parameters=[p.replace(annotation=_annotations[name]) for name, p in _signature.parameters.items()]
    )
    _wrapper.__doc__ = _original.__doc__


def _decode_out(draw: Draw, z: Any) -> Arguments:
    return {"out": draw.out(z.shape, np.float32, z.codes)} if draw.chance(0.5) else {}


def _toml(draw: Draw) -> Arguments:
    text = lp.recipes[draw.of(lp.recipes.names())].to_toml()
    for _ in range(draw.one(0, 1, 2)):
        at = draw.random.randrange(len(text))
        text = text[:at] + draw.of('x1="[{\n. ') + text[at + draw.one(0, 1) :]
    return {"text": text}


def _cost_targets() -> list[Target]:
    given = {
        "DecodeLimit": None, "NodeTraffic": None, "Published": None,
        "GroupedAttention": sound.fixed(heads=8, kv_heads=2, head_dim=64),
        "LatentAttention": sound.fixed(heads=8, q_rank=64, kv_rank=32, nope_dim=16, rope_dim=8, value_dim=16),
        "Hardware": objects.fields(costs.hardware, costs.Hardware),
        "ModelShape": objects.fields(costs.models, costs.ModelShape),
        "NodeCount": sound.fixed(shares=(0.5, 0.5)),
        "achieved_flops": sound.fixed(flops_per_token=1e9, tokens_per_day=1e9, gpus=8),
        "bits_per_value": sound.fixed(codec=sound.bits),
        "decode_limit": sound.fixed(model=sound.model, machine=sound.hardware, dispatch=sound.bits, combine=sound.bits),
        "deepep_bandwidth": sound.fixed(seconds=1e-4, codec=sound.bits, header=16),
        "deepep_message_bytes": sound.fixed(codec=sound.bits),
        "find_hardware": sound.fixed(machine=sound.hardware),
        "find_model": sound.fixed(model=sound.model),
        "kv_cache_bytes": sound.fixed(model=sound.model, codec=sound.bits),
        "measured_nodes": sound.fixed(chosen=lambda d: np.arange(16).reshape(4, 4), experts=16, nodes=4),
        "node_traffic": sound.fixed(model=sound.model, machine=sound.hardware, codec=sound.bits, nodes_per_token=3.5),
        "row_bytes": sound.fixed(codec=sound.bits, columns=lambda d: d.one(128, 7168, 1)),
        "training_flops": sound.fixed(model=sound.model),
        "uniform_nodes": sound.fixed(experts=64, top_k=8, nodes=8, kept=4),
    }  # fmt: skip
    public = [name for name in costs.__all__ if callable(getattr(costs, name))]
    return [Target(f"costs.{name}", getattr(costs, name), given[name], None, 0.4) for name in public if given[name]]
