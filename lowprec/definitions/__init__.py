"""Definitions of the names in a file.

A file refers to formats, quantizers and accumulators by name, and the meaning of a name may change. So a file has one
table of definitions, by kind and name. An entry of a catalogue is written as the hash of its fields, or as the fields
themselves if a reader should report which of them changed; any other object is written with its name and all fields.
`Writer` makes such a table and `Reader` finds objects by it. The results of a run depend on the package's sources as
well: `code.code_hash`.
"""

from .objects import DefinitionError, canonical, deciding_fields, iter_differences, short_hash, to_mapping
from .tables import VERSION, Reader, Writer

__all__ = [
    "VERSION",
    "DefinitionError",
    "Reader",
    "Writer",
    "canonical",
    "deciding_fields",
    "iter_differences",
    "short_hash",
    "to_mapping",
]  # fmt: skip
