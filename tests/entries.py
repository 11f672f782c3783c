"""What follows from an entry of a catalogue, in bits: casts, scales, products, what is sent."""

import itertools
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

import lowprec as lp
from lowprec.codec.wire import Codec
from lowprec.registry import Registry

F32 = NDArray[np.float32]


@cache
def numbers() -> F32:
    """Return a matrix of all that casts tell apart: ties, overflow, subnormals, zeros, NaN and Inf."""
    rng = np.random.default_rng(11)
    x = rng.standard_normal((8, 256)).astype(np.float32) * np.exp2(rng.integers(-24, 20, (8, 1))).astype(np.float32)
    x[1] = lp.formats["e4m3fn"].values()
    x[2, ::2] = (x[1, ::2] + x[1, 1::2]) / 2
    x[3, :8] = 0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 2.0**-149, 3e38
    return x


@cache
def matrix() -> F32:
    """Return finite values, some tiles of which are as small as gradients or zero."""
    x = np.nan_to_num(numbers(), posinf=3.0, neginf=-3.0) * np.float32(2.0**-10)
    x[5] = 0
    x[6] *= np.float32(1e-7)
    return x.astype(np.float32)


def bits(*arrays: Any) -> list[bytes]:
    return [np.ascontiguousarray(a).tobytes() for a in arrays]


def cast_bits(fmt: lp.Format, rounding: Any = "nearest_even", policy: Any = None) -> list[bytes]:
    x, options = numbers(), {"rounding": rounding, "policy": policy}
    if lp.roundings.get(rounding).is_stochastic:
        options["seed"] = 3
    codes = lp.encode(x, fmt, **options)
    wide = lp.encode(x.astype(np.float64), fmt, **options)
    return bits(codes, wide, lp.round_to(x, fmt, **options), lp.decode(codes, fmt))


def rounding_bits(mode: lp.Rounding) -> list[bytes]:
    out, seed = [], {"seed": 5} if mode.is_stochastic else {}
    for fmt in ("e4m3fn", "e2m1fn", "bfloat16", "int8", "e8m0fnu", "p3109_k8p4se"):
        out += cast_bits(lp.formats[fmt], mode)
    for quantizer in ("dsv3_inference", "nvfp4_te", "mxint8"):
        how: dict[str, Any] = {"spec": quantizer, "rounding": mode, **seed}
        q = lp.quantize(matrix(), **how)
        out += bits(q.codes, q.scale, lp.quantize_dequantize(matrix(), **how))
    return out


def policy_bits(policy: lp.Policy) -> list[bytes]:
    formats = ("e4m3fn", "e5m2", "ue4m3", "e2m1fn", "p3109_k8p4se", "p3109_k8p4ue", "p3109_k6p3sf", "float16")
    roundings = ("nearest_even", "to_odd", "up", "toward_zero")
    pairs = itertools.product(formats, roundings)
    return [part for fmt, rounding in pairs for part in cast_bits(lp.formats[fmt], rounding, policy)]


def quantizer_bits(q: lp.Quantizer, x: F32 | None = None) -> list[bytes]:
    x, out = matrix() if x is None else x, []
    if q.amax_history_len is not None:
        state = lp.DelayedScaling(q)
        for step in (1, 2, 4):
            made = state.quantize(x / step)
            out += bits(made.codes, made.scale)
            state.end_step()
        return out
    made = lp.quantize(x, q)
    rows, columns = lp.quantize_with_transpose(x[:, :128].repeat(16, axis=0), q)
    again = made.requantize("1x16")
    noisy = lp.quantize(x, q, rounding="stochastic", seed=1) if q.rule.four_over_six is None else made
    plain = lp.quantize_dequantize(x, q)
    turned = (rows.codes, rows.scale, columns.codes, columns.scale)
    return bits(made.codes, made.scale, plain, noisy.codes, again.codes, again.scale, *turned)


def renamed_format(name: str) -> lp.Format:
    return replace(lp.formats[name], name=f"renamed_{name}")


def product_bits(machine: lp.Accumulator, rename: bool = False) -> list[bytes]:
    """Return bits of chains and scaled products; operands may have formats of other names."""
    rng, out = np.random.default_rng(2), []
    for own in machine.input_formats or (lp.formats["e4m3fn"], lp.formats["e2m1fn"]):
        if machine.dtype == np.float64:
            a, b = rng.standard_normal((3, 32)), rng.standard_normal((2, 32))
            out += bits(lp.mma(a, b, accumulator=machine))
            continue
        fmt = replace(own, name=f"renamed_{own.name}") if rename else own
        x, y = (rng.standard_normal((rows, 128)).astype(np.float32) for rows in (5, 3))
        kind = machine.scale_format
        if fmt.bits <= 16 and machine.dtype != np.float64:
            block = f"1x{machine.scale_block or 64}"
            rule = lp.AmaxRule("block_scale_only" if kind is not None and kind.mantissa_bits else "amax/max")
            how = lp.Quantizer(format=fmt, granularity=block, scale_format=kind or "float32", rule=rule)
            q, r = (lp.quantize(v, how) for v in (x, y))
            out += bits(lp.gemm(q, r, accumulator=machine, promote_every="auto" if kind else 64))
        if kind is None:
            x[0, :4] = y[1, 2:6] = np.nan, np.inf, -np.inf, -0.0
            codes = [lp.encode(v, fmt, overflow="saturate") for v in (x, y)]
            out += bits(lp.mma(*codes, accumulator=machine, a_format=fmt, b_format=fmt))
    return out


def library_bits(library: lp.GemmLibrary, rename: bool = False) -> list[bytes]:
    q, r = (lp.quantize(x, "e4m3fn row") for x in (matrix()[:4], matrix()[4:]))
    outs = [renamed_format(name) if rename else name for name in ("float32", "bfloat16")]
    return bits(*(lp.gemm(q, r, library=library, out_format=out) for out in outs))


def codec_bits(codec: Codec, values: F32 | None = None) -> list[bytes]:
    out: list[bytes] = []
    width = getattr(codec, "columns_multiple", 1)
    shape = (4, 512) if 512 % width == 0 else (2, width)
    plain = np.resize(matrix() if values is None else values, shape)
    for x in (plain, lp.round_to(plain, "bfloat16")):
        wire = codec.encode(x)
        back = codec.from_bytes(wire.to_bytes(), x.shape)
        out += [wire.to_bytes(), *bits(wire.decode(), codec.round_trip(x), back.decode())]
    return out


DOES: dict[str, tuple[Registry[Any], Any, tuple[str, ...]]] = {
    # a catalogue, what follows from an entry, and names of others that its copies have beside those of all
    "rounding": (lp.roundings, rounding_bits, ("nearest_even", "stochastic")),
    "policy": (lp.policies, policy_bits, ("p3109_satnone",)),
    "quantizer": (lp.quantizers, quantizer_bits, ()),
    "accumulator": (lp.accumulators, product_bits, ()),
    "library": (lp.gemm_libraries, library_bits, ()),
    "codec": (lp.codecs, codec_bits, ()),
}
