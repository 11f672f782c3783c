"""Recordings written here, without PyTorch: what `diverge` finds in products and sums, and files that are wrong."""

import hashlib
import json

import numpy as np
import pytest

import lowprec as lp
from lowprec.parity.diverge import diverge
from lowprec.parity.recording import FILES, load_recording

WORD = {"float32": np.float32, "float8_e4m3fn": np.uint8}


class Folder:
    """A recording that stores every row."""

    def __init__(self, path):
        path.mkdir()
        self.path, self.data, self.rows = path, b"", []

    def store(self, array):
        self.data += (raw := np.ascontiguousarray(array).tobytes())
        return [len(self.data) - len(raw), len(raw)]

    def tensor(self, array, dtype):
        hashes = [int.from_bytes(hashlib.sha256(row.tobytes()).digest()[:7]) for row in array]
        digest = hashlib.sha256(array.tobytes()).hexdigest()
        return {"dtype": dtype, "shape": list(array.shape), "hash": digest, "row_hashes": self.store(np.int64(hashes)),
                "rows": list(range(len(array))), "values": self.store(array)}  # fmt: skip

    def add(self, name, inputs, output, numbers=(), dtypes=None, product=None):
        dtypes = dtypes or ["float32"] * len(inputs)
        module, _, rest = name.partition("/")
        row = {"name": name, "module": module, "kind": rest.partition("#")[0], "numbers": list(numbers),
               "inputs": [self.tensor(*pair) for pair in zip(inputs, dtypes, strict=True)],
               "outputs": [self.tensor(output, "float32")]}  # fmt: skip
        if product:
            a, b = inputs
            places = {"rows": list(range(len(a))), "columns": list(range(len(b)))}
            row["product"] = {**places, **dict(zip("abd", map(self.store, (a, b, output)), strict=True))}
        self.rows.append(row)
        return self

    def close(self, **more):
        about = {"recorder": 1, "finished": True, "operations": len(self.rows), "parameters": {}, **more}
        (self.path / FILES[2]).write_bytes(self.data)
        (self.path / FILES[1]).write_text("\n".join(map(json.dumps, self.rows)))
        (self.path / FILES[0]).write_text(json.dumps(about))
        return load_recording(self.path)


def product(path, accumulator):
    rng = np.random.default_rng(0)
    a, b = (lp.encode(rng.standard_normal((8, 256)), "e4m3fn") for _ in "ab")
    d = lp.mma(a, b, accumulator=accumulator)
    return Folder(path).add("mlp/aten._scaled_mm#0", (a, b), d, dtypes=["float8_e4m3fn"] * 2, product=True).close()


def test_both_sides_of_a_product_are_identified(tmp_path):
    found = diverge(product(tmp_path / "a", "hopper_fp8"), product(tmp_path / "b", "blackwell_fp8"))
    assert found.sentence.startswith("the first operation whose outputs differ is mlp/aten._scaled_mm#0 (8 of 8 rows")
    assert found.sentence.endswith("its inputs are equal")
    a, b = found.causes
    assert a.startswith("A: ")
    assert "hopper_fp8" in a
    assert b.startswith("B: ")
    assert "blackwell_fp8" in b


def mean(path, order, how):
    x = np.random.default_rng(0).standard_normal((40, 200), np.float32)
    sums = np.float32([lp.orders[order](200).sum(row) for row in x])[:, None]
    return Folder(path).add("norm/aten.mean.dim#0", (x,), how(sums), ("-1", "True")).close()


def test_orders_of_both_sides_of_a_mean(tmp_path):
    divided = mean(tmp_path / "a", "sequential", lambda sums: sums / np.float32(200))
    found = diverge(divided, mean(tmp_path / "b", "pairwise", lambda sums: sums * np.float32(1 / 200)))
    assert found.causes == (
        "A: its 40 stored sums of 200 numbers are those of sequential divided by n",
        "B: its 40 stored sums of 200 numbers are those of pairwise times 1/n",
    )
    wrong = mean(tmp_path / "c", "pairwise", lambda sums: sums * np.float32(0.9))
    assert "no order in lp.orders gives its 40 stored sums" in diverge(divided, wrong).causes[1]


def test_an_operation_between_two_others(tmp_path):
    x = np.ones((3, 4), np.float32)
    a = Folder(tmp_path / "a").add("n/aten.mul#0", (x,), x).add("m/aten.exp#0", (x,), x).close()
    y = np.nextafter(x, np.float32(2))
    b = Folder(tmp_path / "b").add("n/aten.mul#0", (x,), x).add("m/aten.exp#0", (y,), y).close()
    found = diverge(a, b)
    assert found.first.name == "m/aten.exp#0"
    assert str(found.output) == (
        "3 of 3 rows differ, the first at [0]; of values that both stored, 100.0% differ, by at most 1 ulp"
    )
    assert "operations that the two runs do not share by name" in found.causes[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recorder": 2}, "recorder must be version 1, got 2"),
        ({"operations": 7}, "must have 7 lines, got 1"),
    ],
)
def test_wrong_manifests(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        Folder(tmp_path / "a").add("m/aten.exp#0", (np.ones((1, 1), np.float32),), np.ones((1, 1))).close(**change)


def test_bytes_that_are_cut(tmp_path):
    one = product(tmp_path / "a", "hopper_fp8")
    path = tmp_path / "a" / FILES[2]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"tensors.bin must have \d+ bytes, got \d+"):
        load_recording(one.folder)
