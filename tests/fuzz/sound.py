"""Arguments that suit each other, for each function that takes more than its signature tells."""

import dataclasses
import functools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from calls import Arguments
from draw import ELEMENTS, Draw, room_for
from recorded_folders import Folder, replace_value

import lowprec as lp
from lowprec import logfmt
from lowprec.parity.recording import FILES
from lowprec.scaling.rules import scale_calculations


def by_rounding(draw: Draw, share: float) -> Arguments:
    """Return a rounding, and a seed where it needs one; now and then neither."""
    rounding = draw.entry(lp.roundings)
    if not draw.chance(share):
        return {}
    seed = {"seed": draw.random.getrandbits(64)} if lp.roundings.get(rounding).is_stochastic else {}
    return {"rounding": rounding, **seed}


def onto(draw: Draw, arguments: Arguments, shape: Any, dtype: Any, spare: int = -1) -> Arguments:
    """Add an array for the result now and then; the first argument may have memory behind it, for larger results."""
    if draw.chance(0.3):
        name, x = next(iter(arguments.items()))
        if spare >= 0 and isinstance(x, np.ndarray) and x.flags.c_contiguous and x.flags.writeable:
            arguments[name] = x = room_for(x, spare + 16)
        arguments["out"] = draw.out(shape, dtype, x)
    return arguments


# --- casts -----------------------------------------------------------------------------------------------------------


def cast_arguments(code: bool) -> Callable[[Draw], Arguments]:
    def sound(draw: Draw) -> Arguments:
        fmt = draw.fmt()
        x = draw.large() if draw.chance(0.03) else draw.values()
        arguments = {"x": x, "fmt": fmt, **by_rounding(draw, 0.5)}
        spare = np.asarray(x).nbytes if draw.chance(0.5) else -1
        return onto(draw, arguments, np.shape(x), lp.formats.get(fmt).code_dtype if code else np.float32, spare)

    return sound


def decode_arguments(draw: Draw) -> Arguments:
    fmt = draw.fmt()
    codes = draw.codes(fmt, (300, 700) if draw.chance(0.03) else None)
    return onto(draw, {"codes": codes, "fmt": fmt}, np.shape(codes), np.float32, 4 * np.size(codes))


def pack_arguments(draw: Draw) -> Arguments:
    bits = draw.random.randint(1, 16)
    codes = draw.integers(1 << bits, draw.shape(), np.uint8 if bits <= 8 else np.uint16)
    return onto(draw, {"codes": draw.laid_out(codes), "bits": bits}, (-(-codes.size * bits // 8),), np.uint8)


def unpack_arguments(draw: Draw) -> Arguments:
    bits, count = draw.random.randint(1, 16), draw.random.randint(0, 60)
    arguments = {"packed": draw.laid_out(draw.integers(256, (-(-count * bits // 8),), np.uint8)), "bits": bits}
    return onto(draw, {**arguments, "count": count}, (count,), np.uint8 if bits <= 8 else np.uint16, 2 * count)


def table_arguments(draw: Draw) -> Arguments:
    """Return a table of values, some of them twice or none."""
    table = np.sort(draw.rng().standard_normal(draw.one(4, 16, 256)).astype(np.float32)).tolist()
    return {"name": "mine", "table": tuple(table), "rounding": draw.one("nearest_even", "nearest_away")}


# --- quantizers ------------------------------------------------------------------------------------------------------


def quantize_arguments(draw: Draw) -> Arguments:
    arguments: Arguments = {
        "x": draw.large() if draw.chance(0.03) else draw.values(draw.shape(draw.one(1, 2, 2, 2, 3)))
    }
    arguments["spec"] = specification(draw)
    arguments |= by_rounding(draw, 0.3)
    for name in ("inverse_scale", "tensor_amax"):  # seldom suit the rest
        arguments[name] = draw.of((0.0, 1e-4, 1.0, 3e38)) if draw.chance(0.12) else None
    return arguments


def specification(draw: Draw) -> Any:
    """Return words, an entry of the catalogue, or a quantizer of one's own; now and then one that does not exist."""
    if draw.chance(0.4):
        return draw.entry(lp.quantizers)
    block = draw.one("1x128", "128x128", "tensor", "row", "1x32", "5x7")
    if draw.chance(0.5):
        more = draw.one("", " ue8m0", " floor=1e-4", " stochastic", " hadamard16", " eden", " 1x2")
        return f"{draw.of(lp.formats.names())} {block}{more}"
    stored = draw.one("float32", "e8m0fnu", "e4m3fn", "ue5m3")
    rule = lp.AmaxRule(draw.of(list(scale_calculations(lp.formats[stored]))))
    return lp.Quantizer(format=draw.of(lp.formats.names()), granularity=block, scale_format=stored, rule=rule)


def quantize_dequantize_arguments(draw: Draw) -> Arguments:
    arguments = quantize_arguments(draw)
    return onto(draw, arguments, np.shape(arguments["x"]), np.float32)


def quantized_fields(draw: Draw) -> Arguments:
    q = draw.quantized(draw.one(0, 1, 3), draw.one(16, 64, 130))
    return {field.name: getattr(q, field.name) for field in dataclasses.fields(q)}


def rule_fields(draw: Draw) -> Arguments:
    rule = lp.quantizers[draw.of(lp.quantizers.names())].rule
    return {field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)}


def matrix(draw: Draw) -> Any:
    return draw.quantized(draw.one(0, 1, 5, 40), draw.one(16, 64, 256))


def check_arguments(draw: Draw) -> Arguments:
    """Return somebody's codes and the values that they are of; now and then not quite."""
    x = draw.rng().standard_normal((draw.one(1, 4), draw.one(128, 256))).astype(np.float32)
    q = lp.quantize(x, "e4m3fn 1x128")
    if draw.chance(0.5):
        q.codes[0, draw.random.randrange(x.shape[1])] ^= 1
    return {"q": q, "values": x, **({"quantizer": q.quantizer} if draw.chance(0.5) else {})}


def hadamard_arguments(draw: Draw) -> Arguments:
    size = draw.one(2, 4, 16, 16, 32)
    shape = (draw.one(0, 1, 3), size * draw.one(0, 1, 3))
    signs = "te" if size == 16 and draw.chance(0.5) else draw.one("none", draw.random.getrandbits(64))
    axis = draw.one(-1, 1, 0)
    return {"x": draw.values(shape if axis else shape[::-1]), "size": size, "signs": signs, "axis": axis}


def delayed_steps(options: Arguments) -> Any:
    """Two steps of a tensor under delayed scaling."""
    state, found = lp.DelayedScaling(), []
    for _ in range(2):
        found.append(state.quantize(**options))
        state.end_step()
    return found, state.state_dict()


# --- products --------------------------------------------------------------------------------------------------------


def operands(draw: Draw) -> tuple[Any, Any, str]:
    """Return two quantized matrices that an accumulator takes, and its name."""
    name = draw.of(lp.accumulators.names())
    accumulator = lp.accumulators[name]
    fmts = [f.name for f in accumulator.input_formats if f.bits <= 16]
    if name == "fp64" or (accumulator.input_formats and not fmts):
        name, accumulator, fmts = "hopper_fp8", lp.accumulators["hopper_fp8"], ["e4m3fn", "e5m2"]
    m, n, k = draw.one(1, 2, 5, 0), draw.one(1, 3, 8), draw.one(16, 32, 64, 100, 128, 256, 384, 0)
    if draw.chance(0.02):
        m, n, k = 160, 130, 512
    blocks: Any = None
    scale = None
    if accumulator.scale_format is not None:
        blocks, scale = f"1x{accumulator.scale_block}", accumulator.scale_format.name
    fmts = fmts or ELEMENTS
    same = [draw.of(fmts)] if draw.chance(0.5) else fmts
    a, b = (draw.quantized(rows, k, same, blocks, scale if draw.chance(0.9) else None) for rows in (m, n))
    return a, b, name


def gemm_arguments(draw: Draw) -> Arguments:
    a, b, name = operands(draw)
    arguments = {"a": a, "b": b, "accumulator": draw.one(name, lp.accumulators[name])}
    if draw.chance(0.3):
        arguments["c"] = draw.values((a.shape[0], b.shape[0]))
    if draw.chance(0.4):
        arguments["promote_every"] = draw.one(None, "auto", 32, 64, 128, 256, 16, 8)
    if draw.chance(0.3):
        arguments["out_format"] = draw.fmt()
    return arguments


def checksum_arguments(draw: Draw) -> Arguments:
    a, b, name = operands(draw)
    try:
        d = lp.gemm(a, b, accumulator=name)
    except ValueError:  # scales and groups that do not fit together
        d = np.zeros((a.shape[0], b.shape[0]), np.float32)
    return {"d": draw.laid_out(d), "a": a, "b": b, "accumulator": name}


def prepack_b_arguments(draw: Draw) -> Arguments:
    a, _, name = operands(draw)
    return {"q": a, "accumulator": name}


def grouped_gemm_arguments(draw: Draw) -> Arguments:
    k, experts = draw.one(32, 128, 256), draw.one(1, 2, 3)
    weights = [draw.quantized(8, k, ["e4m3fn"], "1x128") for _ in range(experts)]
    if draw.chance(0.5):
        rows = draw.one(0, 1, 7)
        a = draw.quantized(rows, k, ["e4m3fn"], "1x128")
        expert = np.array([draw.random.randint(-1, experts - 1) for _ in range(rows)], np.int64)
        return {"a": a, "b": weights, "expert": draw.laid_out(expert), "counts": None}
    x = np.asarray(draw.values((experts, 4, k), "f4", special=0), np.float32)
    counts = [draw.random.randint(0, 4) for _ in range(experts)]
    return {"a": lp.quantize(x, "e4m3fn 1x128"), "b": weights, "counts": counts}


def grouped_wgrad_arguments(draw: Draw) -> Arguments:
    counts = [draw.random.randint(0, 130) for _ in range(draw.one(1, 2, 3))]
    k = sum(-(-c // 128) * 128 for c in counts)
    dy, x = (draw.quantized(n, k, ["e4m3fn", "e5m2"], "1x128") for n in (4, 8))
    return {"dy": dy, "x": x, "counts": counts}


def mma_arguments(draw: Draw) -> Arguments:
    name = draw.of(lp.accumulators.names())
    accumulator = lp.accumulators[name]
    m, n, k = draw.one(0, 1, 3), draw.one(1, 4), draw.one(0, 1, 16, 32, 64, 100)
    if name == "fp64":
        a, b = (np.asarray(draw.values((rows, k), "f8"), np.float64) for rows in (m, n))
        return {"a": a, "b": b, "accumulator": name}
    fmt = draw.of([f.name for f in accumulator.input_formats] or lp.formats.names())
    arguments = {"a": draw.codes(fmt, (m, k)), "b": draw.codes(fmt, (n, k)), "accumulator": name}
    arguments |= {"a_format": fmt, "b_format": fmt}
    if accumulator.scale_format is not None:
        for side, rows in (("a", m), ("b", n)):
            arguments[f"{side}_scale"] = draw.codes(accumulator.scale_format, (rows, k // accumulator.scale_block))
    if draw.chance(0.3):
        arguments["c"] = draw.values((m, n), {"float16": "f2"}.get(accumulator.dtype, "f4"))
    return arguments


def attention_arguments(draw: Draw) -> Arguments:
    kernel = lp.attentions[draw.of(lp.attentions.names())]
    m, n, d = draw.one(0, 1, 3), draw.one(0, 1, 4, 130), draw.one(1, 16, 33, 64)
    channels, special = (d, 0.0) if "sage" in kernel.name else (2, 0.2)  # INT8 and E2M1 lack NaN
    q, k = (lp.round_to(draw.values((rows, d), "f4", special), kernel.operands) for rows in (m, n))
    v = lp.round_to(draw.values((n, channels), "f4"), kernel.values_format)
    return {"q": q, "k": k, "v": v, "kernel": kernel.name, "causal": not kernel.is_determined and draw.chance(0.5)}


def attention_grad_arguments(draw: Draw) -> Arguments:
    m, n, d = draw.one(0, 1, 3), draw.one(1, 4, 130), draw.one(1, 16, 33)
    shapes = {"q": (m, d), "k": (n, d), "v": (n, 2), "dout": (m, 2)}
    found: Arguments = {name: lp.round_to(draw.values(shape, "f4"), "bfloat16") for name, shape in shapes.items()}
    return {**found, "causal": draw.chance(0.5)}


def tolerance_arguments(draw: Draw) -> Arguments:
    k = draw.one(1, 40)
    a, b = (lp.quantize(draw.values((rows, k), "f4", special=0.02), "e4m3fn 1x128") for rows in (draw.one(1, 3), 2))
    return {"a": a, "b": b, "accumulator": draw.one("hopper_fp8", "float32", "exact")}


def sum_tolerance_arguments(draw: Draw) -> Arguments:
    order = draw.one("sequential", "pairwise", "any", "numpy_sum")
    return {"x": draw.values((draw.one(0, 1, 3), draw.one(1, 40)), "f4", special=0.02), "order": order}


def quantize_tolerance_arguments(draw: Draw) -> Arguments:
    return {"x": draw.values((draw.one(0, 1, 3), draw.one(1, 40)), "f4"), "spec": draw.one("e4m3fn 1x128", "mxfp8")}


def attention_tolerance_arguments(draw: Draw) -> Arguments:
    found = attention_arguments(draw)
    return {**{name: found[name] for name in "qkv"}, "kernel": draw.one("flash2", "fa3_bf16"), "causal": False}


def identify_attention_arguments(draw: Draw) -> Arguments:
    q, k, v = (lp.round_to(draw.values((3, 4), "f4", special=0), "bfloat16") for _ in "qkv")
    found = lp.attention(q, k, v, kernel="flash2")
    return {"q": q, "k": k, "v": v, "o": found.out, "lse": found.lse, "seconds": 0.5}


def order_fields(draw: Draw) -> Arguments:
    """Return the fields of an order of the catalogue."""
    order = draw.entry(lp.orders)
    rule = lp.orders.get(order)
    found = rule(draw.one(*(n for n in (1, 2, 9, 33, 48) if rule.is_defined_for(n))))
    return {"name": "mine", "steps": found.steps, "sum_format": draw.one("float32", "float64", "bfloat16")}


def matmul_arguments(draw: Draw) -> Arguments:
    m, n, k = draw.one(0, 1, 5), draw.one(1, 9), draw.one(0, 1, 33)
    return onto(draw, {"a": draw.values((m, k)), "b": draw.values((n, k))}, (m, n), np.float32)


def identify_arguments(draw: Draw) -> Arguments:
    """Return a small dump of a machine of the catalogue."""
    a, b = (draw.integers(120, (draw.one(1, 3), 32), np.uint8) for _ in range(2))
    d = lp.mma(a, b, accumulator=draw.one("hopper_fp8", "ada_fp8"))
    return {"a": a, "b": b, "c": None, "d": d, "a_format": "e4m3fn", "b_format": "e4m3fn"}


# --- codecs ----------------------------------------------------------------------------------------------------------


def logfmt_arguments(draw: Draw) -> Arguments:
    if draw.chance(0.15):
        return {"x": draw.values((draw.one(1, 2), draw.one(128, 512)), "b2", special=0.02), "variant": "deepep"}
    x = draw.values(draw.shape(draw.one(1, 2, 2, 3)), draw.one("f4", "f4", "b2", "f2"), special=0.05)
    return {"x": x, "variant": "paper", "approx_tables": None, "axis": draw.one(-1, -1, 0)}


def encoded(draw: Draw) -> Any:
    x = np.asarray(draw.values((draw.one(1, 3), draw.one(1, 128, 300)), "f4", special=0), np.float32)
    return logfmt.encode(x, draw.random.randint(3, 16), draw.one(16, 128), fallback=draw.one(None, "bf16"))


def unpack_logfmt_arguments(draw: Draw) -> Arguments:
    z = encoded(draw)
    wire = z.pack().copy()
    if draw.chance(0.3) and wire.size:
        wire.reshape(-1)[draw.random.randrange(wire.size)] ^= 1 << draw.random.randrange(8)
    common = {"columns": z.shape[-1], "bits": z.bits, "tile": z.tile, "range_bits": z.range_bits}
    return {"wire": wire, **common, "fallback": z.fallback, "clamp_octaves": z.octaves}


def codec_fields(kind: type) -> Callable[[Draw], Arguments]:
    """Return the fields of an entry that is of a class."""

    def sound(draw: Draw) -> Arguments:
        entries = [lp.codecs[name] for name in lp.codecs.names()]
        entry = draw.of(entry for entry in entries if type(entry) is kind)
        return {field.name: getattr(entry, field.name) for field in dataclasses.fields(entry)}

    return sound


def round_trip(self: Any, x: "np.typing.ArrayLike") -> Any:
    """Send values, as bytes and without them; `self` is a codec, and is not drawn anew."""
    wire = self.encode(x)
    data = self.to_bytes(wire)
    return data, self.from_bytes(data, wire.shape).decode(), self.round_trip(x)


def codec_arguments(draw: Draw) -> Arguments:
    codec = lp.codecs[draw.of(lp.codecs.names())]
    columns = getattr(codec, "columns_multiple", None) or draw.one(0, 1, 33, 128, 300)
    return {"self": codec, "x": draw.values((draw.one(0, 1, 3), columns))}


def read_bytes(self: Any, data: "bytes", shape: Any) -> Any:
    """Read what may be damaged; what is read is what was written."""
    wire = self.from_bytes(data, shape)
    return wire.decode(), self.to_bytes(wire) == bytes(data)


def codec_bytes(draw: Draw) -> Arguments:
    codec, x = codec_arguments(draw).values()
    wire = codec.encode(x)
    return {"self": codec, "data": draw.damaged(codec.to_bytes(wire)), "shape": wire.shape}


def toml(draw: Draw) -> str:
    """Return a recipe's text, in which some characters may be others."""
    text = lp.recipes[draw.of(lp.recipes.names())].to_toml()
    for _ in range(draw.one(0, 1, 2)):
        at = draw.random.randrange(len(text))
        text = text[:at] + draw.of('x1="[{\n. ') + text[at + draw.one(0, 1) :]
    return text


#: TOML values of other types and sizes than a field of a rule has.
_ODD = ("-1", "0", "1.5", "nan", "true", '""', '"x"', '"float7"', "[]", "{}", "[[1]]", '["a", 1]', "1979-05-27",
        '[["float32", "x"]]', '{is = "Chain"}', '{is = "Gelu"}', "1e30", str(10**30), "[[[[]]]]")  # fmt: skip


def stack_toml(draw: Draw) -> str:
    """Return a stack's text, or a rule of it that changes another stack; lines and characters may be others."""
    text = lp.stacks[draw.of(lp.stacks.names())].to_toml()
    if draw.chance(0.7):
        _, *rules = text.partition("\n[definitions]")[0].split("\n[rules.")
        text = f'base = "{draw.of(lp.stacks.names())}"\n[rules.{draw.of(rules)}'
    lines = text.splitlines()
    for _ in range(draw.one(0, 1, 1, 2, 3)):
        at = draw.random.randrange(len(lines))
        key, _, value = lines[at].partition(" = ")
        other = draw.of(lines).partition(" = ")
        wrong = draw.of('x1="[{\n. ')
        lines[at] = draw.one(
            f"{key} = {draw.of(_ODD)}", f"{key} = {draw.of(_ODD)}", f"{key} = {other[2]}", f"{other[0]} = {value}", "",
            lines[at].replace(draw.of(lines[at] or " "), wrong),
        )  # fmt: skip
    return "\n".join(lines)


@functools.cache
def _recording() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as parent:
        folder = Folder(Path(parent) / "recording")
        a, b = (np.float32(shape[0] + np.arange(24).reshape(shape)) for shape in ((3, 8), (8, 3)))
        folder.add("mlp/aten.mm#0", (a, b), a @ b, numbers=["1"]).add("aten.neg#0", (a,), -a)
        folder.close(parameters={"w": folder.tensor(b, "float32")})
        return {name: (folder.path / name).read_bytes() for name in FILES}


def recording(draw: Draw) -> dict[str, Any]:
    """Return the files of a recording, in which a value may be another one, or missing, or bits are flipped."""
    files = dict(_recording())
    for name in FILES[:2]:
        if draw.chance(0.5):
            rows = [json.loads(line) for line in files[name].splitlines()]
            replace_value(draw.of(rows), draw.of)
            files[name] = "\n".join(map(json.dumps, rows)).encode()
    name = draw.of(FILES)
    return {**files, name: draw.damaged(files[name])}
