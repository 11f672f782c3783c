"""Recordings written here, without PyTorch: what `diverge` finds in products and sums, and files that are wrong."""

import json
from pathlib import Path

import numpy as np
import pytest
from recorded_folders import Folder, replace_value
from tools import command

import lowprec as lp
from lowprec.parity.diverge import diverge
from lowprec.parity.recording import FILES, load_recording


def product(path, accumulator):
    rng = np.random.default_rng(0)
    a, b = (lp.encode(rng.standard_normal((8, 256)), "e4m3fn") for _ in "ab")
    d = lp.mma(a, b, accumulator=accumulator)
    return Folder(path).add("mlp/aten._scaled_mm#0", (a, b), d, dtypes=["float8_e4m3fn"] * 2, product=True).close()


def scaled(path, accumulator, bias=None, **more):
    rng = np.random.default_rng(0)
    a, b = (lp.encode(rng.standard_normal((8, 256)), "e4m3fn") for _ in "ab")
    scales = np.float32([[0.3]]), np.float32(rng.uniform(0.1, 2, (1, 8)))
    d = lp.mma(a, b, accumulator=accumulator) * (scales[0] * scales[1])
    if bias is not None:
        more["c"] = np.broadcast_to(bias, d.shape)
        d = d + bias
    more = {"a_scale": scales[0], "b_scale": scales[1], **more}
    dtypes = ["float8_e4m3fn"] * 2
    return Folder(path).add("mlp/aten._scaled_mm#0", (a, b), d, dtypes=dtypes, product=True, **more).close()


@pytest.mark.slow
def test_both_sides_of_a_product_are_identified(tmp_path):
    bias = np.linspace(-1, 1, 8, dtype=np.float32)
    found = diverge(scaled(tmp_path / "a", "hopper_fp8", bias), scaled(tmp_path / "b", "blackwell_fp8"))
    assert found.sentence.startswith("the first operation whose outputs differ is mlp/aten._scaled_mm#0 (8 of 8 rows")
    assert found.sentence.endswith("its inputs are equal")
    a, b = found.causes
    assert a.startswith("A: ")
    assert "hopper_fp8" in a
    assert b.startswith("B: ")
    assert "blackwell_fp8" in b


def test_products_with_other_factors_are_not_searched(tmp_path):
    found = diverge(scaled(tmp_path / "a", "hopper_fp8", factors=["alpha 2"]), scaled(tmp_path / "b", "blackwell_fp8"))
    assert found.causes[0] == "A: a product with alpha 2, which is not searched"


def test_products_with_scales_of_blocks_are_not_searched(tmp_path):
    one, other = (
        scaled(tmp_path / str(i), name, a_scale=np.ones((8, 8), np.float32))
        for i, name in enumerate(("hopper_fp8", "blackwell_fp8"))
    )
    text = "A: a product with scales float32 [8, 8] and float32 [1, 8], which is not searched"
    assert diverge(one, other).causes[0] == text


@pytest.mark.parametrize("dtype", ["float4_e2m1fn_x2", "uint16", "uint32", "complex64"])
def test_products_of_other_dtypes_are_read(tmp_path, dtype):
    word = {"uint16": np.uint16, "uint32": np.uint32, "complex64": np.uint64}.get(dtype, np.uint8)
    a = np.arange(12, dtype=word).reshape(3, 4)
    one, other = (
        Folder(tmp_path / str(i)).add("m/aten.mm#0", (a, a), a[:, :3] + word(i), dtypes=[dtype] * 2, product=True,
                                      out=dtype).close() for i in (0, 1)
    )  # fmt: skip
    found = diverge(one, other)
    assert found.causes[0] == f"A: a product of {dtype} and {dtype}: identify does not know {dtype}"


def test_products_of_float64_are_searched(tmp_path):
    a = np.random.default_rng(0).standard_normal((8, 32))
    made = {}
    for name, order in (("a", range(32)), ("b", reversed(range(32)))):
        d = np.zeros((8, 8))
        for k in order:
            d = d + a[:, k, None] * a[:, k]
        made[name] = (
            Folder(tmp_path / name).add("m/aten.mm#0", (a, a), d, dtypes=["float64"] * 2, product=True, out="float64")
        ).close()  # fmt: skip
    a_cause, b_cause = diverge(made["a"], made["b"]).causes
    assert "explain" in a_cause
    assert a_cause[3:] != b_cause[3:]


@pytest.mark.parametrize("shape", [(), (4,)])
def test_tensors_of_one_row(tmp_path, shape):
    x = np.ones(shape, np.float32)
    one, other = (
        Folder(tmp_path / str(i)).add("m/aten.exp#0", (x,), x + np.float32(i)).close() for i in (0, 1)
    )  # fmt: skip
    assert str(diverge(one, other).output).startswith("1 of 1 rows differ, the first at [0]")


def test_a_mean_of_two_axes_is_not_searched(tmp_path):
    x = np.random.default_rng(0).standard_normal((40, 200), np.float32)
    one, other = (
        Folder(tmp_path / str(i)).add("m/aten.mean.dim#0", (x,), x[:, :1] + np.float32(i), ("-1", "-2", "True")).close()
        for i in (0, 1)
    )
    assert diverge(one, other).causes == ()


def test_names_that_rename_makes_equal_are_refused(tmp_path):
    x = np.ones((3, 4), np.float32)
    Folder(tmp_path / "a").add("p.m/aten.exp#0", (x,), x).add("m/aten.exp#0", (x,), x).close()
    with pytest.raises(ValueError, match=r"got 'm/aten.exp#0' twice"):
        load_recording(tmp_path / "a", {"p.": ""})


def tokens_of(path, tokens, width=1):
    """Return a run whose rows, of sequences and tokens, are one axis."""
    rows = (tokens[..., None] * np.ones(4, np.float32)).reshape(-1, 4)
    return (
        Folder(path).add("m/aten.exp#0", (rows,), rows).add("m/aten.cat#0", (rows,), np.repeat(rows, width, 0))
        .add("<model>/module#0", (tokens,), rows, dtypes=["int64"])
    ).renamed("<model>", "").close()  # fmt: skip


def test_flattened_rows_are_aligned(tmp_path):
    tokens = np.arange(12).reshape(2, 6)
    found = diverge(tokens_of(tmp_path / "a", tokens, 3), tokens_of(tmp_path / "b", tokens[:, :4], 3))
    assert found.first is None
    assert found.compared == 2
    assert found.unlike == (
        "the model's inputs have shapes [2, 6] in A, [2, 4] in B: their common rows are compared; whether the inputs "
        "are equal there is not known",
        "1 operation is not compared, because rows cannot be aligned, first m/aten.cat#0",
    )
    changed = tokens[:, :4].copy()
    changed[1, 2] += 1
    found = diverge(tokens_of(tmp_path / "c", tokens), tokens_of(tmp_path / "d", changed))
    assert str(found.output).startswith("1 of 8 rows differ, the first at [1, 2]")


def mean(path, order, how):
    x = np.random.default_rng(0).standard_normal((40, 200), np.float32)
    sums = np.float32([lp.orders[order](200).sum(row) for row in x])[:, None]
    return Folder(path).add("norm/aten.mean.dim#0", (x,), how(sums), ("-1", "True")).close()


@pytest.mark.slow
def test_orders_of_both_sides_of_a_mean(tmp_path):
    divided = mean(tmp_path / "a", "sequential", lambda sums: sums / np.float32(200))
    found = diverge(divided, mean(tmp_path / "b", "pairwise", lambda sums: sums * np.float32(1 / 200)))
    assert found.causes == (
        "A: its 40 stored sums of 200 numbers are those of sequential divided by n",
        "B: its 40 stored sums of 200 numbers are those of pairwise times 1/n",
    )
    wrong = mean(tmp_path / "c", "pairwise", lambda sums: sums * np.float32(0.9))
    assert "no order in lp.orders gives its 40 stored sums" in diverge(divided, wrong).causes[1]


def test_a_sum_with_nan_has_an_order(tmp_path):
    x = np.random.default_rng(0).standard_normal((3, 200), np.float32)
    x[1, 7] = np.nan
    sides = []
    for name in ("sequential", "pairwise"):
        sums = np.float32([[lp.orders[name](200).sum(row)] for row in x])
        sides.append(Folder(tmp_path / name).add("m/aten.sum.dim#0", (x,), sums, ("-1", "True")).close())
    found = diverge(*sides)
    assert found.causes[0] == "A: its 3 stored sums of 200 numbers are those of sequential"


def test_the_command(tmp_path):
    folders = [product(tmp_path / name, name) for name in ("hopper_fp8", "blackwell_fp8")]
    a, b = (str(tmp_path / name) for name in ("hopper_fp8", "blackwell_fp8"))
    found = {
        row["name"]: row["value"] for row in json.loads(command("diverge", a, b, "--seconds", 0, "--json", code=1))
    }
    assert (found["compared"], found["operation"]) == (1, "mlp/aten._scaled_mm#0")
    assert found["result"] == diverge(*folders, seconds=0).sentence
    assert command("diverge", a, a)
    assert "--rename must be OLD=NEW, got 'mlp'" in command("diverge", a, b, "--rename", "mlp", code=2)
    command("diverge", "--write-recorder", tmp_path / "recorder.py")
    assert (tmp_path / "recorder.py").read_bytes() == (Path(lp.__file__).parent / "torch" / "recorder.py").read_bytes()


def test_an_operation_between_two_others(tmp_path):
    x = np.ones((3, 4), np.float32)
    a = Folder(tmp_path / "a").add("n/aten.mul#0", (x,), x).add("m/aten.exp#0", (x,), x).close()
    y = np.nextafter(x, np.float32(2))
    b = Folder(tmp_path / "b").add("n/aten.mul#0", (x,), x).add("m/aten.exp#0", (y,), y).close()
    found = diverge(a, b)
    assert found.first.name == "m/aten.exp#0"
    assert str(found.output) == (
        "3 of 3 rows differ, the first at [0]; of values that both stored, 100.0% differ, by at most 1.19e-07 (1 ulp)"
    )
    assert found.causes == ("the difference comes from operations that the two runs do not share by name",)


def test_a_difference_of_weights_needs_no_other_cause(tmp_path):
    x = np.ones((3, 4), np.float32)
    runs = []
    for name, w in (("a", x), ("b", 2 * x)):
        folder = Folder(tmp_path / name).add("m/aten.mul#0", (x, w), w, numbers=["2"] if name == "b" else [])
        runs.append(folder.close(parameters={"w": folder.tensor(w, "float32")}))
    found = diverge(*runs)
    assert found.unlike[0].startswith("the weights differ: 1 of 1 parameters, first w (3 of 3 rows differ")
    assert found.causes == ("its arguments differ: 2 in B",)


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


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_damaged_recordings_are_refused_or_compared(tmp_path, seed):
    """A missing or odd entry, a flipped bit, a cut file: a sentence about the recording, or a result."""
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 8), (4, 8)))
    folder = Folder(tmp_path / "a").add("mlp/aten.mm#0", (a, b), a @ b.T, numbers=["1"], product=True)
    whole = folder.close(parameters={"w": folder.tensor(b, "float32")})
    contents = {name: (tmp_path / "a" / name).read_bytes() for name in FILES}
    (tmp_path / "b").mkdir()
    refused = []
    for _ in range(150):
        name = FILES[rng.integers(3)]
        content = bytearray(contents[name])
        if name.endswith("bin") or rng.random() < 0.2:
            content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
            content = content[: rng.integers(len(content)) if rng.random() < 0.5 else None]
        else:
            row = json.loads(content)
            replace_value(row, lambda options: options[rng.integers(len(options))])
            content = json.dumps(row).encode()
        for each in FILES:
            (tmp_path / "b" / each).write_bytes(content if each == name else contents[each])
        try:
            str(diverge(whole, load_recording(tmp_path / "b"), seconds=0.01))
        except ValueError as error:
            refused.append(str(error))
    assert len(refused) > 50
    assert [message for message in refused if not message.startswith("diverge: ")] == []
