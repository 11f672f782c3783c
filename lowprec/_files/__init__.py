"""Atomic file writes, and reading and writing of tables, JSON and arrays.

Everything that lowprec saves goes through `write_bytes`.
"""

from .tables import csv_rows, plain, read_csv, read_json, to_csv, to_json, write_json
from .writing import (
    locked,
    make_folder,
    place_aside,
    remove_parts,
    safe_name,
    set_aside,
    write_bytes,
    write_text,
)

__all__ = [
    "csv_rows", "locked", "make_folder", "place_aside", "plain", "read_csv", "read_json", "remove_parts", "safe_name",
    "set_aside", "to_csv", "to_json", "write_bytes", "write_json", "write_text",
]  # fmt: skip
