"""Atomic file writes, and reading and writing of tables, JSON and arrays.

Everything that lowprec saves goes through `write_bytes`.
"""

from .tables import csv_rows, read_csv, read_json, to_csv, to_json, to_jsonable, write_json
from .writing import (
    backup_path,
    locked,
    make_folder,
    move_to_backup,
    remove_temporary_files,
    safe_name,
    write_bytes,
    write_text,
)

__all__ = [
    "backup_path",
    "csv_rows",
    "locked",
    "make_folder",
    "move_to_backup",
    "read_csv",
    "read_json",
    "remove_temporary_files",
    "safe_name",
    "to_csv",
    "to_json",
    "to_jsonable",
    "write_bytes",
    "write_json",
    "write_text",
]  # fmt: skip
