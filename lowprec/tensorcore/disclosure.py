"""Reading and writing disclosures of matrix arithmetic: TOML files in which a vendor publishes how instructions sum.

RISC-V's matrix extension requires (G, psm, rnd) for every instruction. An entry has these three, and describes the same
rule by the fields of an accumulator; `read_disclosure` rejects a file in which the two descriptions differ::

    format = "matrix-arithmetic-disclosure"
    format_version = 1

    [unit]
    vendor = "Example"
    product = "X1"

    [[entry]]
    name = "x1_bf16"
    instructions = ["vfwmmacc.vv"]
    formats = ["bfloat16"]          # of both operands, in any pairing
    c_format = "float32"
    key = { SEW = 32, W = 2, lambda = 4 }
    G = 2
    psm = 0
    rnd = "rto"

      [entry.rule]
      kind = "PartialSum"
      group_size = 4
      partial_rounding = "odd"

      [[entry.evidence]]
      kind = "vectors"
      file = "x1_bf16.npz"
      sha256 = "..."
      outputs = 1000
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .._checks import brief_repr, check_choice, check_int
from .._values import compared_fields
from ..format.catalogue import Format
from ..registry import suggest
from .accumulator import Accumulator
from .kinds import KINDS
from .kinds.riscv import BulkNormalizedSum, PartialSum

FORMAT, VERSION = "matrix-arithmetic-disclosure", 1
_TEXT, _TEXTS, _INTS = "a string", "an array of strings", "an array of integers"
#: Keys of each table, with the type of their values; those of `rule` are the fields of its kind.
_KEYS: Mapping[str, Mapping[str, str]] = {
    "the file": {"format": _TEXT, "format_version": "an integer", "unit": "a table", "entry": "an array of tables"},
    "unit": dict.fromkeys(("vendor", "product", "revision", "specification", "date", "contact"), _TEXT),
    "entry": {
        "name": _TEXT, "instructions": _TEXTS, "formats": _TEXTS, "c_format": _TEXT, "key": "a table",
        "G": "an integer", "psm": "an integer", "rnd": _TEXT, "frm": _TEXTS, "group_lengths": _INTS, "rule": "a table",
        "flags": "a table", "evidence": "an array of tables",
    },
    "key": dict.fromkeys(("SEW", "W", "lambda"), "an integer"),
    "flags": {"raises": _TEXTS},
    "evidence": {"kind": _TEXT, "file": _TEXT, "sha256": _TEXT, "outputs": "an integer"},
}  # fmt: skip
_NEEDED = {
    "the file": ("format", "format_version", "unit", "entry"), "unit": ("vendor", "product"),
    "entry": ("name", "instructions", "formats", "c_format", "rule"), "key": ("W",), "evidence": ("kind", "file"),
}  # fmt: skip
_EVIDENCE = ("vectors", "recording", "model", "sail")
_RVBNA_BITS = 23  # fraction bits, plus ceil(log2(products))
_RND = {"xct": "exact", "frm": "nearest", "rto": "odd"}


class DisclosureError(ValueError):
    """Error for a disclosure that is not TOML, has unknown keys or another version, or contradicts itself."""


def read_disclosure(path: str | Path) -> tuple[Accumulator, ...]:
    """Return the accumulators of a disclosure.

    Parameters
    ----------
    path : str or path
        TOML file. Files of evidence with a hash must be in its folder.

    Raises
    ------
    DisclosureError
        If a key is unknown or missing, a value contradicts another one, or a file of evidence does not have its hash.
    OSError
        If a file cannot be read.
    """
    try:
        data = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DisclosureError(f"load: path must be a TOML file, got {path}: {error}") from None
    try:
        version = data.get("format"), data.get("format_version")
        if version != (FORMAT, VERSION):
            raise DisclosureError(f"format and format_version must be {FORMAT!r} and {VERSION}, got {version}")
        _check_keys("the file", data)
        _check_keys("unit", data["unit"])
        return tuple(_entry(entry, data["unit"], Path(path).parent) for entry in data["entry"])
    except (ValueError, TypeError) as error:
        raise DisclosureError(f"{path}: {error}") from None


def write_disclosure(accumulator: Accumulator, evidence: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return an accumulator as a disclosure with one entry; the vendor and the instructions are to be filled in.

    Parameters
    ----------
    accumulator : Accumulator
        Accumulator without promotion.
    evidence : sequence of mapping
        Tables ``[[entry.evidence]]``: kind, file, sha256 and number of outputs.

    Raises
    ------
    DisclosureError
        If the accumulator promotes.
    TypeError
        If it is not an `Accumulator`.
    """
    if not isinstance(accumulator, Accumulator):
        raise TypeError(
            "write_disclosure: accumulator must be an object of Accumulator, such as an entry of lowprec.accumulators, "
            f"got {brief_repr(accumulator)}"
        )
    if accumulator.promote_every is not None:
        raise DisclosureError(
            f"write_disclosure: accumulator must not promote, got {accumulator.name} with promote_every"
        )
    rows: dict[str, Any] = {
        "name": accumulator.name, "instructions": [accumulator.source],
        "formats": [f.name for f in accumulator.input_formats], "c_format": accumulator.output_format.name,
    }  # fmt: skip
    if isinstance(accumulator, PartialSum) and accumulator.sum_rounding == "nearest" and accumulator.input_formats:
        w = _widening(accumulator)
        if w and accumulator.group_size % w == 0 and _is_rvbna(accumulator):
            rnd = next(rnd for rnd, rounding in _RND.items() if rounding == accumulator.partial_rounding)
            psm = int(isinstance(accumulator, BulkNormalizedSum))
            rows |= {"key": {"W": w}, "G": accumulator.group_size // w, "psm": psm, "rnd": rnd, "frm": ["rne"]}
    lines = [f'format = "{FORMAT}"', f"format_version = {VERSION}", "", "[unit]", 'vendor = ""', 'product = ""', ""]
    lines += ["[[entry]]", *(f"{key} = {_toml(value)}" for key, value in rows.items())]
    lines += ["", "[entry.rule]", f'kind = "{type(accumulator).__name__}"']
    for name in _fields_of(type(accumulator)):
        value = getattr(accumulator, name)
        if value is not None:
            lines.append(f"{name} = {_toml(value)}")
    for item in evidence:
        lines += ["", "[[entry.evidence]]", *(f"{key} = {_toml(value)}" for key, value in item.items())]
    return "\n".join(lines) + "\n"


def _widening(accumulator: PartialSum) -> int:
    """Return the ratio of the result's width to that of the inputs; 0 if it is not the same integer for all of them."""
    bits = accumulator.stored_format.bits
    widths = {divmod(bits, fmt.bits) for fmt in accumulator.input_formats}
    return widths.pop()[0] if len(widths) == 1 and not {rest for _, rest in widths} - {0} else 0


def _is_rvbna(accumulator: PartialSum) -> bool:
    """Return whether aligned products keep as many fraction bits as in RVBNA; True if products are exact."""
    return accumulator.kept_bits in (-1, _RVBNA_BITS + (accumulator.group_size - 1).bit_length())


def _fields_of(kind: type[Accumulator]) -> list[str]:
    return [name for name in compared_fields(kind) if name not in ("input_formats", "promote_every")]


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value.name if isinstance(value, Format) else value, ensure_ascii=False)


def _entry(entry: Mapping[str, Any], unit: Mapping[str, Any], folder: Path) -> Accumulator:
    _check_keys("entry", entry)
    name = entry["name"]
    for table in ("key", "flags"):
        if table in entry:
            _check_keys(table, entry[table], f"entry {name!r}: ")
    lengths = [("group_lengths", length) for length in entry.get("group_lengths", ())]
    counts = [*entry.get("key", {}).items(), ("G", entry.get("G", 1)), *lengths]
    _ = [check_int(f"entry {name!r}", key, value, 1) for key, value in counts]  # TOML integers are read as int
    for item in entry.get("evidence", ()):
        _check_evidence(item, name, folder)
    rule = dict(entry["rule"])
    kinds = {kind.__name__: kind for kind in KINDS}
    kind = rule.pop("kind", None)
    check_choice(f"entry {name!r}", "kind of rule", kind, tuple(kinds))
    for field in rule:
        if field not in (known := _fields_of(kinds[kind])):
            raise DisclosureError(f"entry {name!r}: unknown field {field!r} of a {kind}: {suggest(field, known)}")
    words = " ".join(unit[key] for key in ("vendor", "product", "revision") if key in unit)
    specification = f"; {unit['specification']}" if "specification" in unit else ""
    outputs = sum(
        item.get("outputs", 0) for item in entry.get("evidence", ()) if item["kind"] == "vectors" and "sha256" in item
    )
    found = kinds[kind](
        name, input_formats=tuple(entry["formats"]),
        source=f"{words}: {', '.join(entry['instructions'])}{specification}",
        validated_against=f"disclosed: {outputs} outputs in vectors", **rule,
    )  # fmt: skip
    if found.output_format.name != entry["c_format"]:
        raise DisclosureError(
            f"entry {name!r}: c_format must be the rule's, {found.output_format}, got {entry['c_format']!r}"
        )
    _check_choices(entry, found)
    return found


def _check_choices(entry: Mapping[str, Any], found: Accumulator) -> None:
    """Check that G, psm and rnd are those of the rule."""
    name, given = entry["name"], [key for key in ("G", "psm", "rnd") if key in entry]
    if not given:
        return
    if len(given) < 3 or "key" not in entry:
        raise DisclosureError(f"entry {name!r}: G, psm, rnd and key must be given together, got {', '.join(given)}")
    if not isinstance(found, PartialSum):
        raise DisclosureError(
            f"entry {name!r}: kind must be PartialSum or BulkNormalizedSum with G, psm, rnd, got {type(found).__name__}"
        )
    check_choice(f"entry {name!r}", "rnd", entry["rnd"], tuple(_RND))
    if found.input_formats and entry["key"]["W"] != _widening(found):
        raise DisclosureError(
            f"entry {name!r}: W must be the bits of c_format over those of formats, {found.stored_format.bits} over "
            f"{' and '.join(str(fmt.bits) for fmt in found.input_formats)}, got {entry['key']['W']}"
        )
    wanted = {
        "group_size": (found.group_size, entry["G"] * entry["key"]["W"], "G W"),
        "psm": (int(isinstance(found, BulkNormalizedSum)), entry["psm"], "psm"),
        "partial_rounding": (found.partial_rounding, _RND[entry["rnd"]], "rnd"),
        "sum_rounding": (found.sum_rounding, "nearest", "an addition of C by frm"),
    }
    for field, (rule, said, words) in wanted.items():
        if rule != said:
            raise DisclosureError(f"entry {name!r}: {field} of the rule must be {said!r} ({words}), got {rule!r}")
    if not _is_rvbna(found):
        raise DisclosureError(
            f"entry {name!r}: fraction_bits of the rule must be {_RVBNA_BITS} + ceil(log2(group_size)) with psm = 1, "
            f"got {found.kept_bits} for {found.group_size}"
        )
    if entry["G"] not in (lengths := entry.get("group_lengths", [entry["G"]])):
        raise DisclosureError(f"entry {name!r}: group_lengths must have G, {entry['G']}, got {lengths}")


def _check_keys(table: str, data: Any, where: str = "") -> None:
    if not isinstance(data, Mapping):
        raise DisclosureError(f"{where}{table} must be a table, got {data!r}")
    for key, value in data.items():
        if key not in _KEYS[table]:
            raise DisclosureError(f"{where}unknown key {key!r} in {table}: {suggest(key, _KEYS[table])}")
        if _type_of(value) != _KEYS[table][key]:
            raise DisclosureError(f"{where}{key} in {table} must be {_KEYS[table][key]}, got {value!r}")
    for key in _NEEDED.get(table, ()):
        if key not in data:
            raise DisclosureError(f"{where}{table} must have {key!r}, got {', '.join(data) or 'no key'}")


def _type_of(value: Any) -> str:
    """Return the type of a TOML value in words; an empty array counts as an array of strings."""
    if isinstance(value, list):
        if value and all(isinstance(item, Mapping) for item in value):
            return "an array of tables"
        return _INTS if value and all(type(item) is int for item in value) else _TEXTS
    words = {bool: "a boolean", int: "an integer", str: _TEXT, dict: "a table"}
    return words.get(type(value), type(value).__name__)


def _check_evidence(item: Any, name: str, folder: Path) -> None:
    where = f"entry {name!r}: "
    _check_keys("evidence", item, where)
    check_choice(f"entry {name!r}", "kind of evidence", item["kind"], _EVIDENCE)
    if set(item["file"]) & set("/\\:") or item["file"] in ("", ".", ".."):
        raise DisclosureError(
            f"{where}file of evidence must be a name in the disclosure's folder, got {item['file']!r}"
        )
    if "sha256" in item:
        digest = hashlib.sha256((folder / item["file"]).read_bytes()).hexdigest()
        if digest != item["sha256"]:
            raise DisclosureError(f"{where}sha256 of {item['file']} must be {digest}, got {item['sha256']}")
