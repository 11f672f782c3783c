"""Commands of tolerances: derived pairs, verdicts, and the power of criteria."""

import numpy as np
from command_line import csv_rows, refused, rows, run

import lowprec as lp


def test_a_result_is_judged(tmp_path):
    x, y = lp.testing.operands("normal", 16, 24, 256)
    a, b = lp.quantize(x, "e4m3fn 1x128"), lp.quantize(y, "e4m3fn 128x128")
    files = {"a": x, "b": y, "d": lp.gemm(a, b, out_format="bfloat16"), "z": np.zeros((16, 24), np.float32)}
    paths = {name: tmp_path / f"{name}.npy" for name in files}
    for name, array in files.items():
        np.save(paths[name], array)
    proven, likely = rows("tolerance", paths["a"], paths["b"])
    assert proven["rtol"] == likely["rtol"] == 2.0**-8
    assert 0 < likely["atol"] <= proven["atol"]
    assert "bits equal" in run("tolerance", paths["a"], paths["b"], "--result", paths["d"]).output
    wrong = run("tolerance", paths["a"], paths["b"], "--result", paths["z"], code=1)
    assert "It is what this does: zeros." in wrong.output
    refused("tolerance", paths["a"], paths["b"], "--result", paths["a"], match="got must have shape (16, 24)")


def test_the_power_of_a_criterion_is_measured():
    shape = ("--m", 16, "--n", 24, "--k", 256)
    table = {row["kernel"]: row for row in csv_rows("criterion", "calc_diff<1e-3", *shape, "--data", "normal,positive")}
    assert (table["right"]["normal"], table["zeros"]["positive"], table["1.01x"]["normal"]) == ("1.0", "0.0", "1.0")
    assert table["right"]["normal_95_percent"] == "0.025 to 1.000"
    assert "vacuous: it accepts zeros" in run("criterion", "max_abs<1e9", *shape).output
    refused("criterion", "size<3", *shape, match="unknown measure 'size'")
    refused("mutate", "--target", "a:b", "--", "make", match="command must begin with pytest")
