"""How sets are written to files: one small module an encoding, each a function from a set to bytes."""

from __future__ import annotations

from ...registry import Registry
from . import c, hex, json, mlir, npz, testfloat
from .encoding import Encoding as Encoding

encodings: Registry[Encoding] = Registry("encoding", Encoding)
"""The encodings by name."""
for _encoding in (json.ENCODING, npz.ENCODING, hex.ENCODING, testfloat.ENCODING, c.ENCODING, mlir.ENCODING):
    encodings.register(_encoding.name, _encoding)
