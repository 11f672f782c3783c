"""What names stand for in files: hashes of catalogue entries, tables of definitions, and what a reader refuses."""

import json
from dataclasses import dataclass

import pytest
import refresh

import lowprec as lp
from lowprec.definitions import DefinitionError, Reader, Writer, canonical, iter_differences, short_hash, to_mapping
from lowprec.recipe.data import CATALOGUES, CLASSES, reader, writer

E4M3, HOPPER = lp.formats["e4m3fn"], lp.accumulators["hopper_fp8"]


@pytest.mark.slow
def test_entries_and_defaults_are_those_of_the_file(monkeypatch):
    file = "reference_data/definitions.json"
    monkeypatch.syspath_prepend(str(refresh.ROOT / "reference_data"))
    kept, now = map(json.loads, ((refresh.ROOT / file).read_text(), refresh.record(file, rewrite=True)[0]))
    changed = list(iter_differences(kept, now))
    assert not changed, f"{changed}: run {refresh.COMMAND} for new entries; --rewrite {file} for a change on purpose"


def test_a_hash_is_of_fields_alone():
    assert short_hash(E4M3.with_(name="mine", source="here")) == short_hash(E4M3)
    assert short_hash(E4M3.with_(mantissa_bits=2)) != short_hash(E4M3)
    ints, floats = (lp.quantizers["deepgemm"].with_(amax_floor=floor) for floor in (1, 1.0))
    assert short_hash(ints) == short_hash(floats)
    table = lp.formats["nf4"]
    assert short_hash(table) != short_hash(type(table)("nf4", (*table.table[:-1], 2.0)))


@dataclass(frozen=True)
class Mine:
    """A class outside the package."""

    name: str
    least: float = float("-inf")
    parts: tuple = ()


@pytest.mark.parametrize(
    "value",
    [
        E4M3.with_(name="a", bias=8),
        lp.formats["nf4"].with_(name="a", next_above_max=7.5),
        lp.quantizers["nvfp4_4over6_mse"].with_(
            name="a", granularity="1x32", rounding="toward_zero", max_block_scale=None
        ),
        HOPPER.with_(name="a", input_formats=(), promote_every=None, zero_exponent=None),
        lp.accumulators["fp64"].with_(name="a"),
        lp.gemm_libraries["cublaslt"].with_(name="a", promote_every=None),
        lp.codecs["dsv4_kv_cache"],
        Mine("a", float("nan"), (1, (None, True), E4M3)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_described_is_made_again(value):
    stored = json.loads(json.dumps(to_mapping(value)))
    made = reader({}, "here").made(stored)
    assert type(made) is type(value)
    assert to_mapping(made) == to_mapping(value)
    assert made == value or isinstance(value, Mine)  # NaN


def test_words_of_a_file():
    """Names of one's own stay apart from those of catalogues, of other kinds, and of words that mean something else."""
    w = writer(full=False)
    own = [E4M3.with_(name=name, bias=bias) for bias, name in enumerate(("e4m3fn", "e4m3fn", "1x128", "deepgemm"))]
    assert [w.name("format", f) for f in (E4M3, *own)] == ["e4m3fn", "e4m3fn#2", "e4m3fn#3", "1x128#2", "deepgemm#2"]
    assert w.name("format", own[0].with_(name="same")) == "e4m3fn#2"
    assert w.name("quantizer", lp.Quantizer().with_(name="", amax_floor=1)) == "quantizer"
    r = reader(json.loads(json.dumps(w.table)), "here")
    assert [r.find("format", word) for word in w.table["format"]] == [E4M3, *own]
    assert r.find("format", "e4m3fn") is E4M3


def read(table, check=True):
    return Reader(CATALOGUES, CLASSES, table, "x.toml", check=check)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (3, "x.toml: definitions must be tables by kind and name, got 3"),
        ({"format": 3}, "must be tables"),
        ({"version": 2}, "x.toml: version of the definitions must be 1, got 2"),
        ({"colour": {}}, "definitions must be of format, quantizer.* got 'colour'"),
        (
            {"format": {"e4m3fn": "0" * 12}},
            "format 'e4m3fn' has changed since the file was written: its hash was 000000000000, is",
        ),
        (
            {"format": {"nowhere": "0" * 12}},
            "x.toml: format 'nowhere' is not registered; load the file that registers it first",
        ),
        ({"format": {"e4m3fn": 3}}, "must be defined by a hash or by fields"),
        (
            {"format": {"e4m3fn": {**to_mapping(E4M3), "bias": 8} | {"name": "a", "is": "Nothing"}}},
            "unknown class 'Nothing': expected one of Format, TableFormat, Rounding, Granularity,",
        ),
        (
            {"format": {"a": {"is": "Format", "bits": 8}}},
            "unknown field 'bits' of Format: expected one of name, exponent_bits, mantissa_bits,",
        ),
        ({"format": {"a": {"is": "Format", "exponent_bits": 99, "mantissa_bits": 3}}}, "'a' cannot be made: "),
        ({"format": {"a": {"is": "GemmLibrary"}}}, "x.toml: format 'a' must not be defined as a GemmLibrary"),
        (
            {"codec": {"a": {"is": "Mine", "from": {"module": "os", "code": "1"}}}},
            "x.toml: 'Mine' of os is not loaded; import it first",
        ),
        (
            {"codec": {"a": to_mapping(Mine("a")) | {"from": {"module": __name__, "code": "1"}}}},
            "'Mine' of None has changed since the file was written: its hash was 1, is 1a1a0a637aa5",
        ),
    ],
)
def test_what_a_reader_refuses(table, message):
    with pytest.raises(DefinitionError, match=message):
        read(table)


def test_an_entry_that_is_another_one():
    w = Writer(CATALOGUES, full=True)
    w.name("accumulator", HOPPER)
    with lp.accumulators.scoped(hopper_fp8=HOPPER.with_(name="hopper_fp8", fraction_bits=20, align="floor")):
        with pytest.raises(DefinitionError) as raised:
            read(w.table)
        assert read(w.table, check=False).find("accumulator", "hopper_fp8") == HOPPER
    assert str(raised.value) == (
        "x.toml: accumulator 'hopper_fp8' has changed since the file was written: fraction_bits was 13, is 20; "
        "align was truncate, is floor"
    )


class Outer:
    @dataclass(frozen=True)
    class Inner:
        pass


@pytest.mark.parametrize("value", [lambda x: x, object(), {}, Outer.Inner()])
def test_what_cannot_be_written(value):
    with pytest.raises(DefinitionError, match="cannot be written to a file: it must be"):
        canonical(Mine("a", 0.0, (value,)))
