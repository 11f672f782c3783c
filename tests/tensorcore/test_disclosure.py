"""Disclosures: what is written is read, and what contradicts itself is refused in one sentence."""

from pathlib import Path

import pytest
from tools import command

import lowprec as lp
from lowprec.tensorcore.disclosure import DisclosureError, read_disclosure, write_disclosure

IME = lp.accumulators["ime_bf16_rto"].with_(name="mine")


@pytest.mark.parametrize("name", lp.accumulators.names())
def test_every_accumulator_can_be_disclosed(name: str, tmp_path: Path) -> None:
    entry = lp.accumulators[name]
    (tmp_path / "x.toml").write_text(write_disclosure(entry))
    assert read_disclosure(tmp_path / "x.toml") == (entry,)


def test_load_registers(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(write_disclosure(IME.with_(group_size=1024, name="x1")))
    with lp.accumulators.scoped():
        assert lp.accumulators.load(tmp_path / "x.toml") == ["x1"]
        assert lp.accumulators["x1"].group_size == 1024
        assert lp.accumulators.load(tmp_path / "x.toml") == ["x1"]
        (tmp_path / "x.toml").write_text(write_disclosure(IME.with_(name="x1")))
        with pytest.raises(ValueError, match="name must be new"):
            lp.accumulators.load(tmp_path / "x.toml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("format_version = 1", "format_version = 2", "must be 'matrix-arithmetic-disclosure' and 1, got"),
        ("vendor =", "vender =", "unknown key 'vender' in unit: did you mean 'vendor'"),
        ('product = ""', "", "unit must have 'product', got vendor"),
        ("\nG = 2", "\nG = 4", r"group_size of the rule must be 8 \(G W\), got 4"),
        ("\nG = 2", "", "G, psm, rnd and key must be given together, got psm, rnd"),
        ("\npsm = 0", "\npsm = 1", r"psm of the rule must be 1 \(psm\), got 0"),
        ('\nrnd = "rto"', '\nrnd = "xct"', r"partial_rounding of the rule must be 'exact' \(rnd\), got 'odd'"),
        ('\nrnd = "rto"', '\nrnd = "odd"', "rnd must be one of 'xct', 'frm', 'rto', got 'odd'"),
        ('c_format = "float32"', 'c_format = "float16"', "c_format must be the rule's, float32, got 'float16'"),
        ("group_size = 4", "group = 4", "unknown field 'group' of a PartialSum: did you mean 'group_size'"),
        ('kind = "PartialSum"', 'kind = "Partial"', "kind of rule must be one of 'FusedSum', "),
        ('kind = "PartialSum"\ngroup_size = 4\npartial_rounding = "odd"\nsum_rounding = "nearest"',
         'kind = "ExactGroupSum"', "kind must be PartialSum or BulkNormalizedSum .*, got ExactGroupSum"),
        ("\npsm = 0", '\npsm = "0"', "psm in entry must be an integer, got '0'"),
        ("group_size = 4", "group_size = 2000", "group_size must be an integer from 1 to 1024, got 2000"),
        ('"bfloat16"', '"bf17"', "unknown format 'bf17'"),
        ("[unit]", "[unit", "path must be a TOML file, got "),
        ('frm = ["rne"]', 'group_lengths = [1]', r"group_lengths must have G, 2, got \[1\]"),
    ],
)  # fmt: skip
def test_what_is_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    text = write_disclosure(IME)
    assert old in text
    (tmp_path / "x.toml").write_text(text.replace(old, new, 1))
    with pytest.raises(DisclosureError, match=message) as error:
        read_disclosure(tmp_path / "x.toml")
    assert str(tmp_path / "x.toml") in str(error.value)


@pytest.mark.slow
def test_command_writes_vectors_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "ime.toml"
    written = command("accumulators", "ime_bf16_rto", "--disclosure", str(file)).split()
    assert written == [str(tmp_path / "ime.npz"), str(file)]
    assert read_disclosure(file) == (lp.accumulators["ime_bf16_rto"],)
    (tmp_path / "ime.npz").write_bytes(b"other")
    with pytest.raises(DisclosureError, match=r"sha256 of ime\.npz must be "):
        read_disclosure(file)
    (tmp_path / "ime.npz").unlink()
    with pytest.raises(FileNotFoundError):
        read_disclosure(file)
    assert "NAME must be given with --disclosure, got none" in command("accumulators", "--disclosure", "x", code=2)


def test_promotion_is_not_disclosed() -> None:
    with pytest.raises(DisclosureError, match="accumulator must not promote, got mine"):
        write_disclosure(IME.with_(promote_every=8))
