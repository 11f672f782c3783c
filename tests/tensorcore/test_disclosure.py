"""Disclosures: what is written is read, and what contradicts itself is refused in one sentence."""

import hashlib
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
        ("{ W = 2 }", "{ W = 4 }", "W must be the bits of c_format over those of formats, 32 over 16, got 4"),
        ("{ W = 2 }", "{ W = 2, SEW = 0 }", "SEW must be an integer >= 1, got 0"),
        ("{ W = 2 }", "{ W = 2, lambda = -4 }", "lambda must be an integer >= 1, got -4"),
        ("\nG = 2", "\nG = -2", "G must be an integer >= 1, got -2"),
        ('frm = ["rne"]', "group_lengths = [2, 0]", "group_lengths must be an integer >= 1, got 0"),
        ('kind = "PartialSum"', 'kind = "BulkNormalizedSum"\nfraction_bits = 30', "psm of the rule must be 0"),
        ("group_size = 4", "group_size = 2000", "group_size must be an integer from 1 to 1024, got 2000"),
        ('"bfloat16"', '"bf17"', "unknown format 'bf17'"),
        ('kind = "PartialSum"\ngroup_size = 4\npartial_rounding = "odd"\nsum_rounding = "nearest"',
         'kind = "ChunkedSum"\nchunk_format = 3',
         "ChunkedSum mine: chunk_format must be a format or a name of one, got 3"),
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


def test_evidence_in_the_folder_alone_is_counted(tmp_path: Path) -> None:
    (tmp_path / "outside.bin").write_bytes(b"x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/x.bin").write_bytes(b"x")
    digest, file = hashlib.sha256(b"x").hexdigest(), tmp_path / "folder/x.toml"
    given = {"kind": "vectors", "file": "x.bin", "outputs": 7}
    file.write_text(write_disclosure(IME, [given, {**given, "outputs": 5, "sha256": digest}]))
    assert read_disclosure(file)[0].validated_against == "disclosed: 5 outputs in vectors"
    for wrong in ("../outside.bin", str(tmp_path / "outside.bin"), "..", ""):
        file.write_text(write_disclosure(IME, [{**given, "file": wrong, "sha256": digest}]))
        with pytest.raises(DisclosureError, match="file of evidence must be a name in the disclosure's folder, got "):
            read_disclosure(file)


def test_nothing_of_a_refused_file_is_registered(tmp_path: Path) -> None:
    first, second = (write_disclosure(IME.with_(group_size=8, name=name)) for name in ("x1", "ime_bf16_rto"))
    (tmp_path / "x.toml").write_text(first + second[second.index("[[entry]]") :])
    with lp.accumulators.scoped():
        with pytest.raises(ValueError, match="got accumulator 'ime_bf16_rto'"):
            lp.accumulators.load(tmp_path / "x.toml")
        assert "x1" not in lp.accumulators


def test_fraction_bits_of_rvbna(tmp_path: Path) -> None:
    rvbna = lp.accumulators["ime_bf16_rvbna"].with_(name="mine")
    text = write_disclosure(rvbna)
    assert "psm = 1" in text
    (tmp_path / "x.toml").write_text(text.replace("fraction_bits = 25", "fraction_bits = 24"))
    with pytest.raises(DisclosureError, match=r"fraction_bits of the rule must be 23 \+ .* psm = 1, got 24 for 4"):
        read_disclosure(tmp_path / "x.toml")
    other = rvbna.with_(fraction_bits=24, name="mine")
    (tmp_path / "x.toml").write_text(write_disclosure(other))
    assert read_disclosure(tmp_path / "x.toml") == (other,)


def test_promotion_is_not_disclosed() -> None:
    with pytest.raises(TypeError, match=r"accumulator must be an object of Accumulator, .* got 'ime_bf16_rto'"):
        write_disclosure("ime_bf16_rto")  # type: ignore[arg-type]
    with pytest.raises(DisclosureError, match="accumulator must not promote, got mine"):
        write_disclosure(IME.with_(promote_every=8))
