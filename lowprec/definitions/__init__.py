"""Definitions: what the names in a file stand for.

A file speaks of formats, quantizers and accumulators by name, and a name may come to mean something else. So a file has
one table of definitions, by kind and name. An entry of a catalogue is written as the hash of its fields, or as the
fields themselves where a reader is to say which of them changed; any other object is written with its name and all
fields. `Writer` makes such a table and `Reader` finds objects by it. What a run computes follows from the package's
sources as well: `code.code_hash`.
"""

from .objects import DefinitionError, canonical, deciding_fields, described, differing, short_hash
from .tables import VERSION, Reader, Writer

__all__ = [
    "VERSION", "DefinitionError", "Reader", "Writer", "canonical", "deciding_fields", "described", "differing",
    "short_hash",
]  # fmt: skip
