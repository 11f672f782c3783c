"""Arguments that suit each other, for each function."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from calls import Arguments
from draw import ELEMENTS, Draw, room_for
from numpy.typing import ArrayLike

import lowprec as lp
from lowprec import costs as prices
from lowprec import logfmt


def shape_of(x: Any) -> tuple[int, ...]:
    return np.shape(x)


def cast_arguments(who: str) -> Callable[[Draw], Arguments]:
    def sound(draw: Draw) -> Arguments:
        fmt = draw.fmt()
        x = draw.large() if draw.chance(0.03) else draw.values()
        arguments = {"x": x, "fmt": fmt}
        rounding = draw.entry(lp.roundings)
        if draw.chance(0.5):
            arguments["rounding"] = rounding
            if lp.roundings.get(rounding).is_stochastic:
                arguments["seed"] = draw.random.getrandbits(64)
        if draw.chance(0.3):
            dtype = lp.formats.get(fmt).code_dtype if who == "encode" else np.float32
            if isinstance(x, np.ndarray) and x.flags.c_contiguous and x.flags.writeable and draw.chance(0.5):
                arguments["x"] = x = room_for(x, x.nbytes + 16)
            arguments["out"] = draw.out(shape_of(x), dtype, x)
        return arguments

    return sound


def decode_arguments(draw: Draw) -> Arguments:
    fmt = draw.fmt()
    codes = draw.codes(fmt, (300, 700) if draw.chance(0.03) else None)
    arguments = {"codes": codes, "fmt": fmt}
    if draw.chance(0.3):
        if isinstance(codes, np.ndarray) and codes.flags.c_contiguous:
            arguments["codes"] = codes = room_for(codes, 4 * codes.size + 16)
        arguments["out"] = draw.out(shape_of(codes), np.float32, codes)
    return arguments


def pack_arguments(draw: Draw) -> Arguments:
    bits = draw.random.randint(1, 16)
    rng = np.random.default_rng(draw.random.getrandbits(32))
    codes = rng.integers(0, 1 << bits, draw.shape()).astype(np.uint8 if bits <= 8 else np.uint16)
    arguments = {"codes": draw.laid_out(codes), "bits": bits}
    if draw.chance(0.3):
        arguments["out"] = draw.out((-(-codes.size * bits // 8),), np.uint8, arguments["codes"])
    return arguments


def unpack_arguments(draw: Draw) -> Arguments:
    bits, count = draw.random.randint(1, 16), draw.random.randint(0, 60)
    rng = np.random.default_rng(draw.random.getrandbits(32))
    packed = draw.laid_out(rng.integers(0, 256, -(-count * bits // 8)).astype(np.uint8))
    arguments = {"packed": packed, "bits": bits, "count": count}
    if draw.chance(0.3):
        if isinstance(packed, np.ndarray) and packed.flags.c_contiguous:
            arguments["packed"] = packed = room_for(packed, 2 * count + 16)
        arguments["out"] = draw.out((count,), np.uint8 if bits <= 8 else np.uint16, packed)
    return arguments


def quantize_arguments(draw: Draw) -> Arguments:
    x = draw.large() if draw.chance(0.03) else draw.values(draw.shape(draw.one(1, 2, 2, 2, 3)))
    arguments: Arguments = {"x": x}
    if draw.chance(0.5):
        arguments["fmt"] = draw.fmt(16)
    if "fmt" not in arguments or draw.chance(0.3):
        arguments["quantizer"] = draw.entry(lp.quantizers)
    rounding = draw.entry(lp.roundings)
    if draw.chance(0.3):
        arguments["rounding"] = rounding
        if lp.roundings.get(rounding).is_stochastic:
            arguments["seed"] = draw.random.getrandbits(64)
    for name in ("scale", "arithmetic", "amax_floor", "multiplier", "tensor_amax"):
        arguments.setdefault(name, None)  # seldom suit the rest; see the options
        if draw.chance(0.12):
            choices = {"scale": ("fp32", "ue8m0", "e4m3"), "arithmetic": arithmetics()}
            arguments[name] = draw.of(choices.get(name, (0.0, 1e-4, 1.0, 3e38)))
    return arguments


def arithmetics() -> list[str]:
    from lowprec.scaling.quantizer import ARITHMETICS

    return [name for names in ARITHMETICS.values() for name in names]


def quantize_dequantize_arguments(draw: Draw) -> Arguments:
    arguments = quantize_arguments(draw)
    if draw.chance(0.3):
        x = arguments["x"]
        arguments["out"] = draw.out(shape_of(x), np.float32, x)
    return arguments


def operands(draw: Draw) -> tuple[Any, Any, str]:
    """Return two quantized matrices that an accumulator takes, and its name."""
    name = draw.of(lp.accumulators.names())
    accumulator = lp.accumulators[name]
    fmts = [f for f in accumulator.inputs if f != "float64" and lp.formats[f].bits <= 16]
    if name == "fp64" or (accumulator.inputs and not fmts):
        name, accumulator, fmts = "hopper_fp8", lp.accumulators["hopper_fp8"], ["e4m3fn", "e5m2"]
    m, n, k = draw.one(1, 2, 5, 0), draw.one(1, 3, 8), draw.one(16, 32, 64, 100, 128, 256, 384, 0)
    if draw.chance(0.02):
        m, n, k = 160, 130, 512
    blocks: Any = None
    scale = None
    if accumulator.scale_format is not None:
        blocks, scale = f"1x{accumulator.scale_block}", "ue8m0" if accumulator.scale_format == "e8m0fnu" else "e4m3"
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
        arguments["out"] = draw.fmt()
    return arguments


def checksum_arguments(draw: Draw) -> Arguments:
    a, b, name = operands(draw)
    try:
        d = lp.gemm(a, b, accumulator=name)
    except ValueError:  # scales and groups that do not fit together
        d = np.zeros((a.shape[0], b.shape[0]), np.float32)
    return {"d": draw.laid_out(d), "a": a, "b": b, "accumulator": name}


def pack_operand_arguments(draw: Draw) -> Arguments:
    a, _, name = operands(draw)
    return {"q": a, "accumulator": name}


def grouped_gemm_arguments(draw: Draw) -> Arguments:
    k, experts = draw.one(32, 128, 256), draw.one(1, 2, 3)
    weights = [draw.quantized(8, k, ["e4m3fn"], "1x128") for _ in range(experts)]
    if draw.chance(0.5):
        rows = draw.one(0, 1, 7)
        a = draw.quantized(rows, k, ["e4m3fn"], "1x128")
        expert = np.array([draw.random.randint(-1, experts - 1) for _ in range(rows)], np.int64)
        return {"a": a, "b": weights, "expert": draw.laid_out(expert)}
    x = np.asarray(draw.values((experts, 4, k), "f4", special=0), np.float32)
    counts = [draw.random.randint(0, 4) for _ in range(experts)]
    return {"a": lp.quantize(x, "e4m3fn", "1x128"), "b": weights, "counts": counts}


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
        a, b = (draw.values((rows, k), "f8") for rows in (m, n))
        return {"a": np.asarray(a, np.float64), "b": np.asarray(b, np.float64), "accumulator": name}
    fmt = draw.of(accumulator.inputs or lp.formats.names())
    arguments = {"a": draw.codes(fmt, (m, k)), "b": draw.codes(fmt, (n, k)), "accumulator": name}
    arguments |= {"a_format": fmt, "b_format": fmt}
    if accumulator.scale_format is not None:
        for side, rows in (("a", m), ("b", n)):
            arguments[f"{side}_scale"] = draw.codes(accumulator.scale_format, (rows, k // accumulator.scale_block))
    if draw.chance(0.3):
        arguments["c"] = draw.values((m, n), {"float16": "f2"}.get(accumulator.dtype, "f4"))
    return arguments


def matmul(draw: Draw) -> Arguments:
    m, n, k = draw.one(0, 1, 5), draw.one(1, 9), draw.one(0, 1, 33)
    a, b = draw.values((m, k)), draw.values((n, k))
    arguments = {"a": a, "b": b}
    if draw.chance(0.3):
        arguments["out"] = draw.out((m, n), np.float32, a, b)
    return arguments


def hadamard_arguments(draw: Draw) -> Arguments:
    size = draw.one(2, 4, 16, 16, 32)
    shape = (draw.one(0, 1, 3), size * draw.one(0, 1, 3))
    signs = "te" if size == 16 and draw.chance(0.5) else draw.one("none", draw.random.getrandbits(64))
    axis = draw.one(-1, 1, 0)
    return {"x": draw.values(shape if axis else shape[::-1]), "size": size, "signs": signs, "axis": axis}


def pair(first: str, second: str, **more: Any) -> Callable[[Draw], Arguments]:
    def sound(draw: Draw) -> Arguments:
        shape = draw.shape()
        return {first: draw.values(shape), second: draw.values(shape), **more}

    return sound


def logfmt_arguments(draw: Draw) -> Arguments:
    x = draw.values(draw.shape(draw.one(1, 2, 2, 3)), draw.one("f4", "f4", "b2", "f2"), special=0.05)
    if draw.chance(0.15):
        return {"x": draw.values((draw.one(1, 2), draw.one(128, 512)), "b2", special=0.02), "mode": "deepep"}
    arguments: Arguments = {"x": x, "mode": "paper", "units": None, "axis": draw.one(-1, -1, 0)}
    return arguments


def encoded(draw: Draw) -> Any:
    x = np.asarray(draw.values((draw.one(1, 3), draw.one(1, 128, 300)), "f4", special=0), np.float32)
    return logfmt.encode(x, draw.random.randint(3, 16), draw.one(16, 128), fallback=draw.one(None, "bf16"))


def logfmt_unpack(draw: Draw) -> Arguments:
    z = encoded(draw)
    wire = z.pack()
    if draw.chance(0.3) and wire.size:
        wire = wire.copy()
        wire.reshape(-1)[draw.random.randrange(wire.size)] ^= 1 << draw.random.randrange(8)
    common = {"columns": z.shape[-1], "bits": z.bits, "tile": z.tile, "meta_bits": z.meta_bits}
    return {"wire": wire, **common, "fallback": z.fallback, "clamp_octaves": z.octaves}


def from_bytes(draw: Draw) -> Arguments:
    data = bytearray(encoded(draw).to_bytes())
    for _ in range(draw.one(0, 0, 1, 3)):
        data[draw.random.randrange(len(data))] ^= 1 << draw.random.randrange(8)
    if draw.chance(0.1):
        del data[draw.random.randrange(len(data)) :]
    return {"data": bytes(data)}


def rounding(draw: Draw) -> Arguments:
    return {"name": "mine", **({} if draw.chance(0.3) else {"random_bits": draw.random.randint(0, 32)})}


def quantized_fields(draw: Draw) -> Arguments:
    q = draw.quantized(draw.one(0, 1, 3), draw.one(16, 64, 130))
    return {field.name: getattr(q, field.name) for field in dataclasses.fields(q)}


def matrix(draw: Draw) -> Any:
    return draw.quantized(draw.one(0, 1, 5, 40), draw.one(16, 64, 256))


def on(make: Callable[[Draw], Any], more: Callable[[Draw, Any], Arguments]) -> Callable[[Draw], Arguments]:
    """Return what calls a method of an object that is drawn, and its arguments."""

    def sound(draw: Draw) -> Arguments:
        made = make(draw)
        return {"_of": made, **more(draw, made)}

    return sound


def method(cls: type, name: str) -> Callable[..., Any]:
    def call(_of: Any, **arguments: Any) -> Any:
        return getattr(_of, name)(**arguments)

    signature = inspect.signature(getattr(cls, name))
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__doc__, call.__module__ = getattr(cls, name).__doc__, cls.__module__
    return call


def dequantize(draw: Draw, q: Any) -> Arguments:
    return {"out": draw.out(q.shape, np.float32, q.codes)} if draw.chance(0.5) else {}


def delayed(draw: Draw) -> Arguments:
    return {"quantizer": draw.entry(lp.quantizers, ["te_delayed"])}


def step_arguments(draw: Draw) -> Arguments:
    return {"x": draw.values(draw.shape(2))}


def delayed_steps(x: Any, rounding: Any = "nearest_even", seed: int | None = None) -> Any:
    """Two steps of a tensor under delayed scaling."""
    state = lp.DelayedScaling()
    found = []
    for _ in range(2):
        found.append(state.quantize(x, rounding=rounding, seed=seed))
        state.end_step()
    return found, state.state_dict()


def fixed(**given: Any) -> Callable[[Draw], Arguments]:
    def sound(draw: Draw) -> Arguments:
        return {name: value(draw) if callable(value) else value for name, value in given.items()}

    return sound


def hardware(draw: Draw) -> Any:
    return draw.entry(prices.hardware)


def model(draw: Draw) -> Any:
    return draw.entry(prices.models)


def bits(draw: Draw) -> Any:
    return draw.one(draw.entry(lp.codecs), 8, 16.25)


# --- codecs ---


def codec_fields(kind: type) -> Callable[[Draw], Arguments]:
    """Return the fields of an entry that is of a class."""

    def sound(draw: Draw) -> Arguments:
        entries = [lp.codecs[name] for name in lp.codecs.names()]
        entry = draw.of(entry for entry in entries if type(entry) is kind)
        return {field.name: getattr(entry, field.name) for field in dataclasses.fields(entry)}

    return sound


def round_trip(self: Any, x: "ArrayLike") -> Any:
    """Send values, as bytes and without them; `self` is a codec, and is not drawn anew."""
    wire = self.encode(x)
    data = self.to_bytes(wire)
    return data, self.from_bytes(data, wire.shape).decode(), self.round_trip(x)


def codec_arguments(draw: Draw) -> Arguments:
    name = draw.of(lp.codecs.names())
    columns = 512 if hasattr(lp.codecs[name], "columns_multiple") else draw.one(0, 1, 33, 128, 300)
    return {"self": lp.codecs[name], "x": draw.values((draw.one(0, 1, 3), columns))}


def read_bytes(self: Any, data: "bytes", shape: Any) -> Any:
    """Read what may be damaged; what is read is what was written."""
    wire = self.from_bytes(data, shape)
    return wire.decode(), self.to_bytes(wire) == bytes(data)


def codec_bytes(draw: Draw) -> Arguments:
    made = codec_arguments(draw)
    wire = made["self"].encode(made["x"])
    data = bytearray(made["self"].to_bytes(wire))
    for _ in range(draw.one(0, 0, 1, 3) if data else 0):
        data[draw.random.randrange(len(data))] ^= 1 << draw.random.randrange(8)
    if draw.chance(0.1) and data:
        del data[draw.random.randrange(len(data)) :]
    return {"self": made["self"], "data": bytes(data), "shape": wire.shape}
