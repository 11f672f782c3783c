"""What quantizers, quantized matrices and block formats refuse, and what they say."""

from typing import Any

import numpy as np
from refusals import refusals

import lowprec as lp
from lowprec.scaling.block_formats import block_formats
from lowprec.scaling.p3109 import block_convert, block_project


def names() -> dict[str, Any]:
    x = np.ones((2, 256), np.float32)
    lp.hadamard(x, signs=1)  # a table of what was computed before must not answer for what would be refused
    lp.quantize(x, lp.Quantizer().with_(amax_floor=1))
    delayed = {steps: lp.DelayedScaling(lp.quantizers["te_delayed"].with_(history=steps)) for steps in (3, 16)}
    parts = {"codes": np.full((2, 256), 0x38, np.uint8), "scale": np.ones((2, 2), np.float32)}
    parts |= {"format": "e4m3fn", "granularity": "1x128"}
    own = lp.Quantized(**parts)
    assert (own.format, own.granularity) == (lp.formats["e4m3fn"], lp.Granularity(1, 128))
    assert (own.dequantize() == 1).all()
    return {
        "x": x, "q": lp.quantize(x, "e4m3fn 1x128"), "delayed": delayed, "E": lp.formats["binary8p4se"],
        "S": lp.formats["binary8p1ue"], "block_convert": block_convert, "block_project": block_project,
        "made": lambda **changes: lp.Quantized(**parts | changes), "block_formats": block_formats,
        "PLAIN": lp.Quantizer(), "EDEN": "nvfp4_te eden hadamard128",
    }  # fmt: skip


SIGNS = ("{}", "True", "-1", "2**64", "'of'", "1.0", "None", "np.array([1, 2])")
test_refused = refusals(
    [
        ("lp.Quantizer(granularity='1x')", "granularity='1x': rows x columns"),
        ("lp.quantize(x, 'e4m3fn 0x128')", "granularity='0x128'"),
        ("lp.Quantizer(scale_format='fp17')", "unknown format 'fp17': did you mean 'fp16'"),
        ("PLAIN.with_(division='shift')", "division='shift'"),
        ("PLAIN.with_(amax_floor=-1.0)", "amax_floor=-1.0: a finite number >= 0"),
        *((f"{f}(x, {spec})", message) for f in ("lp.quantize", "lp.quantize_dequantize", "lp.quantize_both")
          for spec, message in (
              ("'dsv3_inferenc'", "unknown word 'dsv3_inferenc' in 'dsv3_inferenc': did you mean 'dsv3_inference'"),
              ("'1x16 nvfp4_tee'", "unknown word 'nvfp4_tee' in '1x16 nvfp4_tee': did you mean 'nvfp4_te'"),
              ("'te_delayed'", r"spec must have no state, got 'te_delayed': lowprec.DelayedScaling\('te_delayed'\)"),
              ("'e8m0fnu 1x32'", "e8m0fnu cannot be an element format"),
              ("'fp22 1x32'", "fp22 cannot be an element format"),
              ("lp.Quantizer(format=lp.TableFormat('t', [0.0, 1.0, 2.0, 4.0]))", "t cannot be an element format"),
              ("'ue4m3 1x32'", "ue4m3 cannot be an element format"),
              ("'e4m3fm 1x32'", "did you mean 'e4m3fn'"),
              ("'e4m3fn'", "spec must say which values share a scale, as 'e4m3fn 1x128' .* got 'e4m3fn'"),
              ("lp.formats['e5m2']", "spec must say which values share a scale, as 'e5m2 1x128'"),
              ("'1x128'", "an element format is missing"),
              ("''", "spec must be words such as .* got an empty string"),
              ("'nvfp4_te hadamard16 fresh'", "spec must have signs of its own, as 'fresh' ones come from a recipe"),
              ("'e4m3fn 1x128 stochastic'", "needs a seed"))),
        ("lp.quantize(x, 128)", TypeError, "spec must be words such as 'e4m3fn 1x128', .* got 128"),
        ("lp.quantize(x, EDEN)", "eden must have a matrix and a seed"),
        ("lp.quantize(x, EDEN, seed=-1)", "seed"),
        ("lp.quantize(x[:, :200], EDEN, seed=0)", r"multiples of 128 values along its blocks, got \(2, 200\)"),
        *((f"lp.quantize(x, EDEN, seed=0, {given})", f"{given.partition('=')[0]} must be left out with eden")
          for given in ("rounding='up'", "tensor_amax=1.0", "multiplier=1.0", "offset=3", "out=q")),
        *((f"lp.quantize(x, 'nvfp4', {name}={value})", f"{name}={value.removeprefix('np.')}")
          for name, value in (("tensor_amax", "-1.0"), ("tensor_amax", "np.nan"), ("multiplier", "0.0"))),
        ("lp.quantize(x, 'e4m3fn 1x128', out=lp.quantize(x, 'mxfp4_floor'))",
         r"out must have uint8 codes \(2, 256\) and scales \(2, 2\), got Quantized"),
        ("lp.quantize(np.ones((2, 2, 2)), 'e4m3fn 1x128').T", "for matrices"),
        ("lp.quantize_both(np.ones((2, 2, 2)), 'e4m3fn 1x128')", r"x must be a matrix, got shape \(2, 2, 2\)"),
        ("q.requantize(3)", TypeError, "spec must be words such as 'e4m3fn 1x128', a Format, .* got 3"),
        ("q.convert('e5m2')", "convert: spec must say a block"),
        ("q[0]", TypeError, r"rows must be a slice, as in q\[:128\], got 0"),
        ("q[::2]", "rows must be whole blocks of 1 without a step"),
        ("lp.quantize(x, 'e4m3fn 2x128')[1:]", "whole blocks of 2"),
        ("lp.quantize(np.ones((1, 2, 2)), 'e4m3fn 1x2')[:1]", r"of a matrix, got shape \(1, 2, 2\)"),
        ("q.convert(lp.Quantizer(scale_format='e4m3fn'))", "scale"),
        ("lp.formats.register('mine', 3)", TypeError, "format 'mine': a Format is needed, not 3"),
        # Quantizers of one's own, and matrices of one's own codes and scales.
        ("lp.Quantizer(scale_format='fp16')", "scale_format must be float32 or a .* of up to 8 bits, got float16"),
        ("lp.Quantizer(rule=lp.AmaxRule('floor'))", "AmaxRule with float32 scales: arithmetic='floor': 'amax/max', "),
        ("lp.Quantizer(scale_format='e4m3fn')", "AmaxRule with e4m3fn scales: arithmetic='amax/max': 'folded', "),
        ("lp.AmaxRule(bound=-1.0)", "AmaxRule: bound=-1.0"),
        ("lp.AmaxRule(zero='two')", "zero='two': 'rule', 'one'"),
        ("lp.Quantizer(hadamard=12)", "hadamard=12: a power of two"),
        ("lp.Quantizer(transform_format='bf17')", "unknown format 'bf17'"),
        ("lp.Quantizer(transform_format=16)", TypeError, "a format is a name or a Format, not 16"),
        ("lp.Quantizer(history=0)", r"history=0: 1 to 2\^20 steps"),
        ("lp.AmaxRule(smallest_exponent=-130)", "smallest_exponent=-130: a whole number from -127 to -126"),
        *((f"lp.Quantizer(signs={signs}{more})", "signs=") for signs in SIGNS for more in ("", ", hadamard=16")),
        ("made(format='e4m3fx')", "unknown format 'e4m3fx': did you mean 'e4m3fn'"),
        ("made(granularity='1x')", "granularity='1x'"),
        ("made(scale_format='fp33')", "unknown format 'fp33'"),
        ("made(codes=np.ones((2, 256)))", TypeError, "codes is float64, needed is an ndarray of uint8"),
        ("made(codes=[[1]])", TypeError, "codes is list"),
        ("made(scale=np.ones((2, 2)))", TypeError, "scale is float64, needed is an ndarray of float32"),
        ("made(scale=np.ones((2, 3), np.float32))",
         r"scale has shape \(2, 3\); codes \(2, 256\) .* have \(2, 2\)"),
        # Transforms, histories, blocks.
        ("lp.hadamard(x, 12)", "a power of two"),
        ("lp.hadamard(x, 32)", "is for size 16, not 32"),
        ("lp.hadamard(x[:, :60])", "60 values along the axis"),
        *((f"lp.hadamard(x, signs={signs})", "hadamard: signs=") for signs in ("True", "1.0", "{}", "[1]", "-1")),
        *((f"lp.hadamard(np.ones((16, 16)), axis={axis})", "hadamard: axis=.*: -1, 0, 1 is needed")
          for axis in ("np.array([1, 2])", "2", "'1'", "None")),
        ("delayed[3].load_state_dict(delayed[16].state_dict())", "a history of 3 steps"),
        ("lp.DelayedScaling('dsv3_inference')", "'dsv3_inference' has no history"),
        ("lp.DelayedScaling(algorithm='mean')", "algorithm='mean'"),
        ("block_project([1.0], [1, 2], E, S)", "a scale for each block"),
        ("block_convert(1.0, E, S)", "no blocks"),
        *((f"block_formats[{name!r}].encode(1.0)", "a single number has no blocks") for name in block_formats.names()),
    ],
    names,
)  # fmt: skip
