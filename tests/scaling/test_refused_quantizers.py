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
    lp.quantize(x, "e4m3fn", amax_floor=1)
    delayed = {steps: lp.DelayedScaling(lp.quantizers["te_delayed"].with_(history=steps)) for steps in (3, 16)}
    parts = {"codes": np.full((2, 256), 0x38, np.uint8), "scale": np.ones((2, 2), np.float32)}
    parts |= {"format": "e4m3fn", "granularity": "1x128"}
    own = lp.Quantized(**parts)
    assert (own.format, own.granularity) == (lp.formats["e4m3fn"], lp.Granularity(1, 128))
    assert (own.dequantize() == 1).all()
    return {
        "x": x, "q": lp.quantize(x, "e4m3fn"), "delayed": delayed, "E": lp.formats["binary8p4se"],
        "S": lp.formats["binary8p1ue"], "block_convert": block_convert, "block_project": block_project,
        "made": lambda **changes: lp.Quantized(**parts | changes), "block_formats": block_formats,
        "quantize": lambda **options: lp.quantize(x, **{"fmt": "e4m3fn", **options}),
    }  # fmt: skip


SIGNS = ("{}", "True", "-1", "2**64", "'of'", "1.0", "None", "np.array([1, 2])")
test_refused = refusals(
    [
        ("quantize(granularity='1x')", "granularity='1x': rows x columns"),
        ("quantize(granularity='0x128')", "granularity='0x128'"),
        ("quantize(granularity=128)", "granularity=128"),
        ("quantize(scale_format='fp17')", "unknown format 'fp17': did you mean 'fp16'"),
        ("quantize(division='shift')", "division='shift'"),
        ("quantize(amax_floor=-1.0)", "amax_floor=-1.0: a finite number >= 0"),
        ("quantize(amax_floor=np.nan)", "amax_floor=nan"),
        ("quantize(amax_floor=True)", "amax_floor=True"),
        ("quantize(quantizer='dsv3_inferenc')", "unknown quantizer 'dsv3_inferenc': did you mean 'dsv3_inference'"),
        ("quantize(quantizer='nvfp4_tee')", "unknown quantizer 'nvfp4_tee': did you mean 'nvfp4_te'"),
        ("quantize(fmt=None, quantizer='te_delayed')", "'te_delayed' has a state"),
        ("quantize(fmt='e8m0fnu')", "e8m0fnu cannot be an element format"),
        ("quantize(fmt='fp22')", "fp22 cannot be an element format"),
        ("quantize(fmt=lp.TableFormat('t', [0.0, 1.0, 2.0, 4.0]))", "t cannot be an element format"),
        ("quantize(fmt='ue4m3')", "ue4m3 cannot be an element format"),
        ("quantize(fmt='e4m3fm')", "did you mean 'e4m3fn'"),
        ("quantize(fmt=None)", "fmt or quantizer is needed"),
        ("quantize(rounding='stochastic')", "needs a seed"),
        *((f"lp.quantize(x, quantizer='nvfp4', {name}={value})", f"{name}={value.removeprefix('np.')}")
          for name, value in (("tensor_amax", "-1.0"), ("tensor_amax", "np.nan"), ("multiplier", "0.0"))),
        ("lp.quantize(np.array(['a']), 'e4m3fn')", TypeError, "real numbers are needed"),
        ("lp.quantize(np.ones((2, 2), complex), 'e4m3fn')", TypeError, "complex"),
        ("lp.quantize(x, 'e4m3fn', out=lp.quantize(x, quantizer='mxfp4_floor'))",
         r"needed are uint8 codes \(2, 256\) and scales \(2, 2\)"),
        ("lp.quantize_dequantize(x, 'e4m3fn', out=np.zeros(x.shape))", "out is float64"),
        ("q.dequantize(out=np.ones((2, 256)))", r"out is float64 \(2, 256\), needed is contiguous float32"),
        ("lp.quantize(np.ones((2, 2, 2)), 'e4m3fn').T", "for matrices"),
        ("lp.quantize_both(np.ones((2, 2, 2)), 'e4m3fn')", r"a matrix is needed, not shape \(2, 2, 2\)"),
        ("lp.requantize(np.ones((2, 2)), '1x128')", TypeError, "requantize: ndarray is not Quantized"),
        ("lp.convert(np.zeros(3))", TypeError, "ndarray is not Quantized"),
        ("lp.convert(q, scale_format='e4m3fn')", "scale"),
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
        ("lp.Quantizer(history=1.5)", r"history=1\.5: a whole number or None"),
        ("lp.AmaxRule(smallest_exponent=-130)", "smallest_exponent=-130: a whole number from -127 to -126"),
        ("lp.Quantizer(format='e4m3fm')", "did you mean 'e4m3fn'"),
        ("lp.Quantizer(granularity='1 x 128')", "granularity='1 x 128'"),
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
        ("lp.ms_eden(np.zeros((3, 100)), seed=0)", "columns a multiple of 128"),
        ("lp.ms_eden(np.zeros((3, 48)), seed=0, size=24)", "size=24"),
        ("lp.ms_eden(np.full((1, 128), np.nan), seed=0)", "NaN or Inf"),
        ("block_project([1.0], [1, 2], E, S)", "a scale for each block"),
        ("block_convert(1.0, E, S)", "no blocks"),
        *((f"block_formats[{name!r}].encode(1.0)", "a single number has no blocks") for name in block_formats.names()),
    ],
    names,
)  # fmt: skip
