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
    delayed = {steps: lp.DelayedScaling(lp.quantizers["te_delayed"].with_(amax_history_len=steps)) for steps in (3, 16)}
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
        ("lp.Quantizer(granularity='1x')", "granularity must be rows x columns such as '1x128' or"),
        ("lp.quantize(x, 'e4m3fn 0x128')", "granularity must be rows x columns such as '1x128' or"),
        ("lp.Quantizer(scale_format='fp17')", "unknown format 'fp17': did you mean 'fp16'"),
        ("PLAIN.with_(scale_application='shift')",
         "AmaxRule: scale_application must be one of 'divide', 'reciprocal', 'max/amax',"),
        ("PLAIN.with_(amax_floor=-1.0)", "AmaxRule: amax_floor must be a finite number >= 0, got -1.0"),
        *((f"{f}(x, {spec})", message) for f in ("lp.quantize", "lp.quantize_dequantize", "lp.quantize_with_transpose")
          for spec, message in (
              ("'dsv3_inferenc'", "unknown word 'dsv3_inferenc' in 'dsv3_inferenc': did you mean 'dsv3_inference'"),
              ("'1x16 nvfp4_tee'", "unknown word 'nvfp4_tee' in '1x16 nvfp4_tee': did you mean 'nvfp4_te'"),
              ("'te_delayed'", r"spec must have no state, got 'te_delayed': lowprec.DelayedScaling\('te_delayed'\)"),
              ("'e8m0fnu 1x32'", "quantize: element format must be signed and of at most 16 bits, got e8m0fnu"),
              ("'fp22 1x32'", "quantize: element format must be signed and of at most 16 bits, got fp22"),
              ("lp.Quantizer(format=lp.TableFormat('t', [0.0, 1.0, 2.0, 4.0]))", "quantize: element format must be"),
              ("'ue4m3 1x32'", "quantize: element format must be signed and of at most 16 bits, got ue4m3"),
              ("'e4m3fm 1x32'", "did you mean 'e4m3fn'"),
              ("'e4m3fn'", "spec must name the block of a scale, as 'e4m3fn 1x128' .* got 'e4m3fn'"),
              ("lp.formats['e5m2']", "spec must name the block of a scale, as 'e5m2 1x128'"),
              ("'1x128'", "spec must name an element format, such as 'e4m3fn', got '1x128'"),
              ("''", "spec must be words such as .* got an empty string"),
              ("'nvfp4_te hadamard16 resample_signs'", "spec must have fixed signs"),
              ("'e4m3fn 1x128 stochastic'", r"seed must be an integer from 0 to 2\^64 - 1 for"))),
        ("lp.quantize(x, 128)", TypeError, "spec must be words such as 'e4m3fn 1x128', .* got 128"),
        ("lp.quantize(x, EDEN)", "eden must have a matrix and a seed"),
        ("lp.quantize(x, EDEN, seed=-1)", "seed"),
        ("lp.quantize(x[:, :200], EDEN, seed=0)", r"quantize: x must have a multiple of 128 values along its"),
        *((f"lp.quantize(x, EDEN, seed=0, {given})", f"{given.partition('=')[0]} must be left out with eden")
          for given in ("rounding='up'", "tensor_amax=1.0", "inverse_scale=1.0", "offset=3", "out=q")),
        *((f"lp.quantize(x, 'nvfp4', {name}={value})", f"{name} must be .*, got {value.removeprefix('np.')}")
          for name, value in (("tensor_amax", "-1.0"), ("tensor_amax", "np.nan"), ("inverse_scale", "0.0"))),
        ("lp.quantize(x, 'e4m3fn 1x128', out=lp.quantize(x, 'mxfp4_floor'))",
         r"out must have uint8 codes \(2, 256\) and scales \(2, 2\), got <Quantized mxfp4_floor"),
        ("lp.quantize(np.ones((2, 2, 2)), 'e4m3fn 1x128').T", r"Quantized.T: codes must be a matrix, got shape"),
        ("lp.quantize_with_transpose(np.ones((2, 2, 2)), 'e4m3fn 1x128')",
         r"x must be a matrix, got shape \(2, 2, 2\)"),
        ("q.requantize(3)", TypeError, "spec must be words such as 'e4m3fn 1x128', a Format, .* got 3"),
        ("q.convert('e5m2')", "convert: spec must name a block"),
        ("q[0]", TypeError, r"rows must be a slice, as in q\[:128\], got 0"),
        ("q[::2]", "rows must be whole blocks of 1 without a step"),
        ("lp.quantize(x, 'e4m3fn 2x128')[1:]", "whole blocks of 2"),
        ("lp.quantize(np.ones((1, 2, 2)), 'e4m3fn 1x2')[:1]", r"Quantized: codes must be a matrix to take rows of"),
        ("q.convert(lp.Quantizer(scale_format='e4m3fn'))", "scale"),
        ("lp.formats.register('mine', 3)", TypeError, "format 'mine' must be a Format, got 3"),
        # Quantizers of one's own, and matrices of one's own codes and scales.
        ("lp.Quantizer(scale_format='fp16')", "scale_format must be float32 or a .* of up to 8 bits, got float16"),
        ("lp.Quantizer(rule=lp.AmaxRule('floor'))",
         r"AmaxRule with float32 scales: scale_calculation must be one of"),
        ("lp.Quantizer(scale_format='e4m3fn')",
         "AmaxRule with e4m3fn scales: scale_calculation must be one of 'te_folded',"),
        ("lp.AmaxRule(max_block_scale=-1.0)", "AmaxRule: max_block_scale must be a finite number > 0, got -1.0"),
        ("lp.AmaxRule(zero_block='two')", "zero_block must be one of 'rule', 'one', 'nan', 'largest', 'smallest',"),
        ("lp.Quantizer(hadamard_size=12)", "Quantizer: hadamard_size must be a power of two >= 2, got 12"),
        ("lp.Quantizer(transform_format='bf17')", "unknown format 'bf17'"),
        ("lp.Quantizer(transform_format=16)", TypeError, "format must be a name or a Format, got 16"),
        ("lp.Quantizer(amax_history_len=0)", r"Quantizer: amax_history_len must be from 1 to 2\^20, got 0"),
        ("lp.AmaxRule(min_scale_exponent=-130)", "min_scale_exponent must be an integer from -127 to -126, got -130"),
        *((f"lp.Quantizer(hadamard_signs={signs}{more})", "Quantizer: hadamard_signs must be")
          for signs in SIGNS
          for more in ("", ", hadamard_size=16")),
        ("made(format='e4m3fx')", "unknown format 'e4m3fx': did you mean 'e4m3fn'"),
        ("made(granularity='1x')", "granularity must be rows x columns such as '1x128' or"),
        ("made(scale_format='fp33')", "unknown format 'fp33'"),
        ("made(codes=np.ones((2, 256)))", TypeError, "Quantized: codes must be an ndarray of uint8, got float64"),
        ("made(codes=[[1]])", TypeError, "Quantized: codes must be an ndarray of uint8, got list"),
        ("made(scale=np.ones((2, 2)))", TypeError, "Quantized: scale must be an ndarray of float32, got float64"),
        ("made(scale=np.ones((2, 3), np.float32))",
         r"scale must have shape \(2, 2\) for codes \(2, 256\) in blocks of 1x128, got \(2, 3\)"),
        # Transforms, histories, blocks.
        ("lp.hadamard(x, 12)", "a power of two"),
        ("lp.hadamard(x, 32)", "hadamard: size must be 16 with signs='te', got 32; other sizes take 'none' or a seed"),
        ("lp.hadamard(x[:, :60])", "hadamard: x must have a multiple of size=16 values along the axis, got 60"),
        *((f"lp.hadamard(x, signs={signs})",
          r"signs must be 'te', 'none' or a seed from 0 to 2\^64 - 1, got") for signs in ("True", "1.0", "{}", "[1]",
           "-1")),
        *((f"lp.hadamard(np.ones((16, 16)), axis={axis})", "hadamard: axis must be one of -1, 0, 1, got .*")
          for axis in ("np.array([1, 2])", "2", "'1'", "None")),
        ("delayed[3].load_state_dict(delayed[16].state_dict())", r"state must have a multiplier and a history of"),
        ("lp.DelayedScaling('dsv3_inference')", "quantizer must have a history, as 'te_delayed' has, got"),
        ("lp.DelayedScaling(algorithm='mean')", "DelayedScaling: algorithm must be 'max' or 'most_recent', got 'mean'"),
        ("block_project([1.0], [1, 2], E, S)", r"block_project: scale must have shape \(\), one per block, got \(2,\)"),
        ("block_convert(1.0, E, S)", r"block_convert: x must have shape \(..., n\), got a single number"),
        *((f"block_formats[{name!r}].encode(1.0)",
          r"x must have shape \(..., K\), got a single number") for name in block_formats.names()),
    ],
    names,
)  # fmt: skip
