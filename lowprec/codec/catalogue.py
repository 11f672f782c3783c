"""The catalogue of codecs."""

from __future__ import annotations

from lowprec.format.catalogue import Format
from lowprec.format.catalogue import formats as _F
from lowprec.registry import Registry
from lowprec.scaling.quantizer import quantizers

from .block import BlockCodec
from .cast import CastCodec
from .logarithmic import DeepEPCodec, LogFMTCodec
from .paged import PagedCodec
from .split import SplitCodec
from .wire import Codec

codecs: Registry[Codec] = Registry("codec", Codec)  # type: ignore[type-abstract]
"""The codecs by name.

Examples
--------
>>> import numpy as np
>>> x = np.array([[1.0, 0.3, -0.004]], np.float32)
>>> codecs["fp8_1x128"].round_trip(x)
array([[ 1.        ,  0.29464287, -0.00390625]], dtype=float32)
>>> wire = codecs["logfmt8"].encode(x)
>>> wire.to_bytes().hex(), wire.nbytes, wire.decode()[0, 1]
('833b803f7f6c81', 7, np.float32(0.30248684))
"""


def _symmetric(bits: int) -> Format:
    """Return a format of signed `bits`-bit integers scaled to fractions below 2, without the lowest integer."""
    return Format(f"int{bits}_symmetric", exponent_bits=0, mantissa_bits=bits - 1, bias=0, specials="symmetric")


_V3 = "DeepSeek-V3 (arXiv 2412.19437, section 3.3)"
_ISCA = "arXiv 2505.09343, section 3.2"
_OCP = "OCP Microscaling Formats 1.0"

_V4_KV = BlockCodec(
    "dsv4_kv", _F["e4m3fn"], 64, _F["e8m0fnu"], quantizer=quantizers["dsv4_kv"],
    description="DeepSeek-V4, inference/model.py: keys and values, the dimensions without a position",
)  # fmt: skip
_BF16 = CastCodec("bf16", _F["bfloat16"], description=f"combine of {_V3}; KV cache of most models")

_FLASHMLA = "deepseek-ai/FlashMLA 9241ae3, README.md and tests/quant.py"
# A power of two not below max(amax / 448, 1e-4): of bfloat16 values, whose quotients torch's log2 never rounds up to
# an integer.
_MLA = quantizers["deepgemm_ue8m0"].with_(name="flashmla", amax_floor=448e-4, source=_FLASHMLA)

_catalogue: list[Codec] = [
    CastCodec("float32", _F["float32"], description="nothing is lost"),
    _BF16,
    CastCodec("fp16", _F["float16"], description="5 exponent bits: Inf from 65520 on"),
    BlockCodec("fp8_1x128", _F["e4m3fn"], description="dispatch in DeepEP: float32 scales, amax / 448"),
    BlockCodec(
        "fp8_1x128_ue8m0", _F["e4m3fn"], scale_format=_F["e8m0fnu"],
        description=f"dispatch of {_V3}: powers of two, rounded up",
    ),
    BlockCodec("e5m2_1x128", _F["e5m2"], description=f"compared with LogFMT-8 in {_ISCA}"),
    *(
        BlockCodec(
            name, quantizers[name].format, 32, _F["e8m0fnu"], quantizer=quantizers[name],
            description=f"{_OCP}: powers of two per 32, {rule}",
        )
        for name, rule in (
            ("mxfp8", "rounded up, as TransformerEngine does"),
            ("mxfp8_floor", "rounded down: the largest may saturate"),
            *((f"{name}_floor", "rounded down") for name in ("mxfp8_e5m2", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4")),
        )
    ),
    BlockCodec(
        "nvfp4", _F["e2m1fn"], 16, _F["e4m3fn"], quantizer=quantizers["nvfp4_te"], tensor_scale=True,
        description="NVFP4 as TransformerEngine makes it: E4M3 scales per 16, one float32 scale per tensor",
    ),
    _V4_KV,
    BlockCodec(
        "dsv41_kv_fp4", _F["e2m1fn"], 16, _F["e4m3fn"], quantizer=quantizers["dsv41_kv_fp4"],
        description="DeepSeek-V4.1, inference/kernel.py: compressed keys and values, E4M3 scales, none of the tensor",
    ),
    SplitCodec(
        "dsv4_kv_cache", ((448, _V4_KV), (64, _BF16)),
        description="DeepSeek-V4's cache of a token: 448 dimensions as dsv4_kv, 64 with a position in BF16",
    ),
    SplitCodec(
        "flashmla_v32",
        ((512, BlockCodec("flashmla_v32", _F["e4m3fn"], quantizer=_MLA, scales_last=True)), (64, _BF16)),
        description=f"KV cache of a token, 656 bytes: E4M3 per 128, float32 powers of two, 64 in BF16: {_FLASHMLA}",
    ),
    PagedCodec(
        "flashmla_model1",
        SplitCodec(
            "flashmla_model1",
            ((448, BlockCodec("flashmla_model1", _F["e4m3fn"], 64, _F["e8m0fnu"], quantizer=_MLA)), (64, _BF16)),
        ),
        scale_bytes=7,
        description=f"KV cache of 64 tokens, scales after the values, 576 divides the bytes: {_FLASHMLA}",
    ),
    *(
        BlockCodec(
            f"int{bits}_1x{tile}", _symmetric(bits), tile, description=f"{bits}-bit integers, float32 scales: {where}"
        )
        for bits, tile, where in (
            (4, 32, "blocks as of ZeRO++'s gradients (arXiv 2306.10209), smaller"),
            (4, 128, "4.25 bits"),
            (8, 128, "amax / 127"),
            (10, 128, "as many bits as LogFMT-10"),
        )
    ),
    BlockCodec(
        "e5m6_1x128_ue8m0", _F["e5m6"], scale_format=_F["e8m0fnu"],
        description=f"attention outputs of {_V3}; combine candidate",
    ),
    *(
        LogFMTCodec(f"logfmt{bits}", bits, description=f"LogFMT-{bits}Bit: {_ISCA}" if bits in (8, 10) else "LogFMT")
        for bits in range(3, 17)
    ),
    DeepEPCodec(
        "logfmt10_deepep",
        description="DeepEP's use_logfmt: bfloat16 where a tile reaches 1, zeros are counted",
    ),
]  # fmt: skip
for _codec in _catalogue:
    codecs.register(_codec.name, _codec)
codecs.seal()
