"""What a tensor goes through on its way to another place: the wire to the experts and back, or a cache.

A codec turns rows of values into what would be sent, down to its bytes, and back. It serves wherever a tensor travels
or waits: dispatch and combine of a Mixture of Experts and their backward directions (arXiv 2412.19437, section 3.3;
arXiv 2505.09343, section 3.2), activations kept for the backward pass, a KV cache. Anything with the same members is a
codec too; one with a name in the catalogue can stand in recipes and in cost models.
"""

from .block import BlockCodec
from .cast import Cast, CastCodec
from .catalogue import codecs
from .logarithmic import DeepEPCodec, LogFMTCodec
from .wire import Codec, Wire, WireError

__all__ = ["BlockCodec", "Cast", "CastCodec", "Codec", "DeepEPCodec", "LogFMTCodec", "Wire", "WireError", "codecs"]
