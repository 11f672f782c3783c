"""Files of quantized matrices: what is saved comes back bit for bit, and nothing else is taken for one."""

import functools
import hashlib
import json
import operator
import zipfile

import hostile_files
import numpy as np
import pytest

import lowprec as lp
from lowprec import _values
from lowprec.format.rounding import Rounding
from lowprec.scaling.rules import AmaxRule, scale_calculations

RNG = np.random.default_rng(5)
SCALES = [lp.formats[name] for name in ("float32", "e8m0fnu", "e4m3fn", "ue5m3")]
BLOCKS = ("tensor", "row", "column", "1x32", "128x128", "32x1", "allx16", "3x5")
OWN = {
    "own fields": lp.Format("own_e3m4", 3, 4, bias=2, specials="fnuz", source="here"),
    "own integer": lp.Format("own_int7", 0, 6, specials="symmetric"),
    "own wide": lp.Format("own_e5m9", 5, 9),
    "own table": lp.TableFormat(
        "own_thirds", [0.0, 1 / 4, 1 / 2, 1.0, -1.0, -1 / 2, -1 / 4, -1 / 8], next_above_max=1.75
    ),
    "own table of specials": lp.TableFormat(
        "own_specials", [0.0, 1.0, np.inf, np.nan, -0.0, -1.0, -np.inf, 2.0**-149], rounding="nearest_away"
    ),
}
ELEMENTS = [f for f in map(lp.formats.get, lp.formats.names()) if f.signed and f.bits <= 16] + [*OWN.values()]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Leave the disk out of it: these tests write thousands of files."""
    monkeypatch.setattr("os.fsync", lambda _: None)


def inputs():
    x = RNG.standard_normal((6, 140)).astype(np.float32)
    x[1, 3], x[2, 7], x[3, 64:96] = np.nan, np.inf, 0
    return [x, np.zeros((2, 3, 64), np.float32), np.full((1, 32), 1e37, np.float32), np.empty((0, 32), np.float32)]


def there_and_back(q, folder):
    q.save(folder / "q.npz")
    back = lp.Quantized.load(folder / "q.npz")
    assert back == q
    assert type(back.format) is type(q.format)
    assert back.dequantize().tobytes() == q.dequantize().tobytes()
    assert back.format.source == q.format.source
    assert [path.name for path in folder.iterdir()] == ["q.npz"]
    if q.quantizer is not None:
        assert _values.bitwise_equal(back.quantizer.note, q.quantizer.note)
    return back


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fmt", ELEMENTS, ids=lambda f: f.name)
def test_every_format_with_every_block_and_scale(fmt, tmp_path):
    for block in BLOCKS:
        for scale in SCALES:
            quantizer = lp.Quantizer("", fmt, block, scale, AmaxRule(scale_calculations(scale)[-1]))
            for x in inputs()[: 4 if block == "1x32" else 1]:
                there_and_back(lp.quantize(x, quantizer), tmp_path)


@pytest.mark.sampled(24)
@pytest.mark.parametrize("name", lp.quantizers.names())
def test_every_quantizer(name, tmp_path):
    quantizer = lp.quantizers[name].with_(amax_history_len=None)
    for x in inputs():
        if quantizer.hadamard_size is None or x.shape[-1] % quantizer.hadamard_size == 0:
            there_and_back(lp.quantize(x, quantizer), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("scale", SCALES)
def test_every_arithmetic_and_ones_own_rounding(scale, tmp_path):
    for arithmetic in scale_calculations(scale):
        for fmt in ("e4m3fn", "float8_e5m2", lp.formats["e2m1fn"], "hif8", OWN["own table"]):
            for rounding in ("nearest_even", "rna", lp.roundings["to_odd"], Rounding("own", 1 << 30, 3 << 30)):
                mine = lp.Quantizer("mine", fmt, "1x16", scale, AmaxRule(arithmetic), rounding, note="of ours: ü")
                there_and_back(lp.quantize(inputs()[0], mine), tmp_path)


def test_ones_own_objects_are_kept_where_their_names_are_not_known(tmp_path):
    mine = lp.TableFormat("mine", [0.0, 0.5, 1.0, -1.0])
    away = Rounding("away", 1 << 31, 1 << 31)
    with lp.formats.scoped(mine=mine), lp.roundings.scoped(away=away):
        q = there_and_back(lp.quantize(inputs()[0], lp.Quantizer("q", "mine", rounding="away")), tmp_path)
        assert (q.quantizer.format, q.quantizer.rounding) == (mine, away)
    with lp.formats.scoped(mine=lp.formats["e4m3fn"]):  # something else by this name
        back = lp.Quantized.load(tmp_path / "q.npz")
    assert (back.quantizer.format, back.quantizer.rounding) == (mine, away)
    assert back.codes.tobytes() == q.codes.tobytes()


def test_layouts_shapes_and_scales_that_no_quantizer_makes(tmp_path):
    codes = RNG.integers(0, 256, (6, 8)).astype(np.uint8)
    scale = np.float32([[1, -2], [np.inf, -0.0], [np.nan, 1e-45]])
    scale.view(np.uint32)[2, 0] = 0xFFC12345  # a NaN of any bits
    for c in (codes, np.asfortranarray(codes), codes[::-1], np.repeat(codes, 2, 1)[:, ::2]):
        for s in (scale, np.asfortranarray(scale), scale[:, ::-1]):
            there_and_back(lp.Quantized(c, s, "e5m2", "2x4"), tmp_path)
    for shape in ((), (1,), (1, 1, 1, 1), (0,), (1, 0)):
        there_and_back(made(np.zeros(shape, np.uint8), ONE if 0 not in shape else ONE[:, :0]), tmp_path)
    for tensor in (0.0, 1e-45, 3.0, np.inf):
        there_and_back(made(ZEROS, ONE, "e4m3fn", "e4m3fn", tensor), tmp_path)


class Derived(lp.Format):
    """A format of a class that no file knows."""


ONE, ZEROS = np.ones((1, 1), np.float32), np.zeros((1, 4), np.uint8)


def made(codes=ZEROS, scale=ONE, fmt="e4m3fn", *more):
    return lp.Quantized(codes, scale, fmt, "1x4", *more)


@pytest.mark.parametrize(
    ("q", "words"),
    [
        (made(np.full((1, 4), 255, np.uint8), fmt="e2m1fn"), "must be from 0 to 15, got 255"),
        (made(np.zeros((1, 4), np.uint32), fmt="tf32"), "at most 16 bits, got 19 of tf32"),
        (made(np.zeros((1, 4), np.uint32), fmt="float32"), "at most 16 bits, got 32 of float32"),
        (made(fmt=Derived("d", 4, 3)), "got Derived 'd'"),
        (made(ZEROS, 3 * ONE, "e4m3fn", "e8m0fnu"), "scales must be values of e8m0fnu"),
        (
            made(ZEROS, np.float32(1.1) * ONE, "e4m3fn", "e4m3fn"),
            "save: scales must be values of e4m3fn, to the bit, got others",
        ),
        (made(ZEROS, -np.float32(np.nan) * ONE, "e4m3fn", "e8m0fnu"), "scales must be values of e8m0fnu"),
        (made(ZEROS, ONE, "e4m3fn", "e4m3fn", np.nan), "tensor_scale must be"),
        (made(ZEROS, ONE, "e4m3fn", "e4m3fn", -1.0), "tensor_scale must be"),
    ],
)
def test_what_cannot_be_read_back_is_not_written(q, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        q.save(tmp_path / "q.npz")
    assert not any(tmp_path.iterdir())


# --- what a header may say -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A file with two levels of scales, and its header."""
    path = tmp_path_factory.mktemp("saved") / "q.npz"
    lp.quantize(inputs()[0][:, :32], "nvfp4_te").save(path)
    with np.load(path) as held:
        arrays = dict(held)
    return arrays, json.loads(arrays["header"].tobytes())


def digest(header, arrays):
    found = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in ("codes", "scales"):
        found.update(f"\0{name}\0{arrays[name].dtype.str}\0{arrays[name].shape}\0".encode())
        found.update(arrays[name].tobytes())
    return found.hexdigest()


def written(path, arrays, header, sign=True, **changed):
    arrays = arrays | changed
    plain = {key: value for key, value in header.items() if key != "sha256"}
    full = plain | {"sha256": digest(plain, arrays) if sign else header["sha256"]}
    np.savez(path, **(arrays | {"header": np.frombuffer(json.dumps(full).encode(), np.uint8)}))
    return path


def places(value, at=()):
    """Yield where something stands in JSON."""
    yield at
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*at, key))


def replaced(value, at, new):
    if not at:
        return new
    copy = value.copy()
    copy[at[0]] = replaced(value[at[0]], at[1:], new)
    return copy


def refused(path, words=r"q\.npz"):
    """Hold a refusal to one line that names the file."""
    with pytest.raises(ValueError, match=words) as caught:
        lp.Quantized.load(path)
    assert "q.npz" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def loaded_or_refused(path):
    try:
        return lp.Quantized.load(path)
    except ValueError:
        return refused(path)


ODD = (None, True, -1, 2**70, 10**400, 0.5, float("nan"), float("inf"), "", "x", "0x1p5000", [], [-1, 2], {}, [[1]])


def test_a_changed_header_is_refused_though_codes_and_scales_are_whole(saved, tmp_path):
    arrays, header = saved
    for at in places(header):
        for new in (8, "e4m3", None, "ue8m0"):
            if at and replaced(header, at, new) != header and at != ("sha256",):
                refused(written(tmp_path / "q.npz", arrays, replaced(header, at, new), sign=False))


@pytest.mark.slow
def test_whatever_a_header_says_and_signs_loads_as_such_or_is_refused(saved, tmp_path):
    """Its author can compute a digest, too: each value is checked, and what is loaded can be saved."""
    arrays, header = saved
    loaded = 0
    for at in places(header):
        for new in ODD:
            path = written(tmp_path / "q.npz", arrays, replaced(header, at, new) if at else {"kind": new})
            if (q := loaded_or_refused(path)) is not None:
                there_and_back(q, tmp_path)
                loaded += 1
    assert loaded  # names, notes, sources are free


@pytest.mark.parametrize(
    ("at", "new"),
    [
        (("tensor_scale",), "nan"), (("tensor_scale",), "-0x1p0"), (("tensor_scale",), "0x1.0000000000001p0"),
        (("tensor_scale",), "0x1p5000"), (("tensor_scale",), 1.0), (("shape",), [-6, -32]), (("shape",), [6, 16, -2]),
        (("shape",), [3, 32]), (("shape",), [6.0, 32]), (("shape",), [2**32, 2**32, 0]), (("shape",), "6"),
        (("scale_format",), "float32"), (("scale_format", "mantissa_bits"), 9),
        (("granularity",), "1x32"), (("granularity",), 3),
        (("format", "kind"), "table"), (("format", "bits"), 4), (("format", "bias"), True), (("format", "name"), ""),
        (("format", "source"), 7), (("quantizer", "note"), []), (("quantizer", "hadamard_size"), 2.0),
        (("quantizer", "scale_format"), "e4m3fn"), (("quantizer", "format", "exponent_bits"), "2"),
        (("quantizer", "rounding", "ties_even"), 7), (("quantizer", "rule", "kind"), "mean"),
        (("quantizer", "rule", "amax_floor"), "0"), (("version",), 3), (("version",), "4"), (("kind",), "x"),
    ],
)  # fmt: skip
def test_what_no_header_says(at, new, saved, tmp_path):
    arrays, header = saved
    inner = functools.reduce(operator.getitem, at[:-1], header)
    refused(written(tmp_path / "q.npz", arrays, replaced(header, at[:-1], inner | {at[-1]: new})))


def test_arrays_of_another_type_or_size(saved, tmp_path):
    arrays, header = saved
    for name in ("codes", "scales"):
        good = arrays[name]
        for other in (good[:-1], np.append(good, good[:1]), good.astype(np.int8), good.astype(np.float64), good[:0],
                      np.array("text")):  # fmt: skip
            refused(written(tmp_path / "q.npz", arrays, header, **{name: other}))


def test_headers_that_are_no_object(saved, tmp_path):
    arrays, _ = saved
    for content in (b"", b"[1]", b"7", b"\xff", b"{", b"[" * 100_000, b'{"shape": ' + b"9" * 5000 + b"}"):
        np.savez(tmp_path / "q.npz", **(arrays | {"header": np.frombuffer(content, np.uint8)}))
        refused(tmp_path / "q.npz")


@pytest.mark.slow
def test_every_byte_of_a_file_counts(tmp_path):
    """A bit flipped or a file cut anywhere: the same matrix, or an error that names the file."""
    q = lp.quantize(inputs()[0][:1, :16], "e2m1fn 1x16 ue8m0")
    q.save(tmp_path / "whole.npz")
    whole, path = (tmp_path / "whole.npz").read_bytes(), tmp_path / "q.npz"
    bits = np.random.default_rng(1).integers(0, 8, len(whole))
    damaged = [whole[:at] + bytes([whole[at] ^ (1 << bits[at])]) + whole[at + 1 :] for at in range(len(whole))]
    for content in damaged + [whole[:at] for at in range(0, len(whole), 7)]:
        path.write_bytes(content)
        assert (found := loaded_or_refused(path)) is None or found == q


def test_members_that_are_encrypted_compressed_oddly_or_no_arrays(saved, tmp_path):
    lp.quantize(inputs()[0], "e4m3fn 1x32 ue8m0").save(tmp_path / "whole.npz")
    whole, path = (tmp_path / "whole.npz").read_bytes(), tmp_path / "q.npz"
    first = whole.index(b"PK\x01\x02")  # its directory: 8 bytes on, what says encrypted; 10, how it is compressed
    for at in (first + 8, first + 10):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        refused(path, r"damaged: .*(encrypted|compression)")
    path.write_bytes(whole[:200])
    refused(path, "damaged")
    members = {name: hostile_files.saved(array) for name, array in saved[0].items()}
    for other in members:
        path.write_bytes(hostile_files.archive(members | {other: b"no array at all"}))
        refused(path, rf"q\.npz: .* damaged: {other} in it: it does not begin as an array does")
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        path.write_bytes(hostile_files.archive(members, method))
        refused(path)
    path.write_bytes(hostile_files.archive(members, zipfile.ZIP_DEFLATED))
    lp.Quantized.load(path)


def test_other_files_and_other_versions(saved, tmp_path):
    arrays, header = saved
    one = hostile_files.saved(np.ones(3))
    for content in (one, hostile_files.archive({"a": one})):
        (tmp_path / "q.npz").write_bytes(content)
        refused(tmp_path / "q.npz", "not a file of a quantized matrix")
    refused(written(tmp_path / "q.npz", arrays, header | {"version": 9}), "version of the file must be 4, got 9")
    with pytest.raises(FileNotFoundError):
        lp.Quantized.load(tmp_path / "none.npz")
