"""Codecs of tensors that are sent or stored: to the experts and back, in an all-reduce, or in a cache.

A codec encodes rows of values to the bytes that would be sent, and decodes them. It applies wherever a tensor is sent
or stored: dispatch and combine of a Mixture of Experts and their backward directions (arXiv 2412.19437, section 3.3;
arXiv 2505.09343, section 3.2), activations saved for the backward pass, a KV cache. Any object with the same members is
a codec; one with a name in the catalogue can be used in recipes and in cost models.
"""

from .block import BlockCodec
from .cast import CastCodec, CastPayload
from .catalogue import codecs
from .logarithmic import DeepEPCodec, LogFMTCodec
from .wire import Codec, DecodeError, EncodedTensor

__all__ = [
    "BlockCodec",
    "CastCodec",
    "CastPayload",
    "Codec",
    "DecodeError",
    "DeepEPCodec",
    "EncodedTensor",
    "LogFMTCodec",
    "codecs",
]
