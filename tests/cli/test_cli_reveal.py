"""The command `reveal`."""

import numpy as np
from command_line import refused, rows, run

import lowprec as lp


def test_the_order_of_a_function_is_printed(tmp_path, monkeypatch):
    table = {row["name"]: row["value"] for row in rows("reveal", "numpy:sum", "--n", 1, "--svg", tmp_path / "x.svg")}
    assert table["order"] == "x[0]"
    assert (tmp_path / "x.svg").read_text().startswith("<svg")
    (tmp_path / "mine_for_reveal.py").write_text("def first(x):\n    return x[0] + (x[1] + x[2])\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert " sum(x[2::-1]) " in run("reveal", "mine_for_reveal:first", "--n", 3).output
    said = run("reveal", "numpy:max", "--n", 4, code=1)
    assert "numpy.max must add its inputs" in said.stderr
    dot = run("reveal", "numpy:vdot", "--n", 3, "--dot", "--dtype", "float64").output
    assert "0 of 200 sums of numpy.vdot differ" in dot


def test_probes_and_answers(tmp_path):
    files = [tmp_path / f"{i}.npz" for i in range(3)]
    run("reveal", "--n", 6, "--write-probes", files[0])
    order = lp.orders["halving"](6)
    for i in range(2):
        given = dict(np.load(files[i]))
        np.savez(files[i], d=order.sum(given["a"]), **given)
        answers = [word for file in files[: i + 1] for word in ("--answers", file)]
        said = run("reveal", "--n", 6, *answers, "--write-probes", files[i + 1])
    assert f" {order} " in said.output
    refused("reveal", "--n", 6, "--answers", files[0], match="--write-probes must be a file, since")


def test_batch_sizes_at_which_a_row_changes(tmp_path, monkeypatch):
    (tmp_path / "mine_for_batches.py").write_text(
        "import numpy as np\n\ndef product(a, b):\n    p = a[:, None] * b\n"
        "    return np.cumsum(p if len(a) < 3 else p[..., ::-1], axis=-1)[..., -1]\n"
    )
    monkeypatch.chdir(tmp_path)
    words = ("invariance", "mine_for_batches:product", "--k", 24, "--n", 5)
    said = run(*words, "--rows", "1-4", code=1).output
    assert "row 0 changes its bits at M = 3" in said
    assert "sum(x[23::-1])" in said
    assert "row 0 keeps its bits in 40 outputs for each M of 3 from 3 to 8" in run(*words, "--rows", "3-4,8").output
    refused(*words, "--rows", "1-x", match="--rows must be numbers from 1 to 65,536 and ranges such as 1-64, got '1-x'")
    refused("invariance", "numpy", match="must be MODULE:FUNCTION or a name of lp.norms, got 'numpy'")
    said = run("invariance", "llama_rms_norm_cuda", "--k", 520, "--rows", "8-20", code=1).output
    assert "row 0 changes its bits at M = 16" in said
    assert "16   0" in said
    assert "keeps its bits in 72" in run("invariance", "numpy:ravel", "--k", 1, "--rows", "2-3", "--operands", 1).output


def test_mistakes():
    refused("reveal", "--n", 4, match="MODULE:FUNCTION must be given alone, or --write-probes or --answers, got none")
    refused("reveal", "numpy:sum", "--n", 4, "--write-probes", "x.npz", match="got both")
    refused("reveal", "numpy", "--n", 4, match="function must be MODULE:FUNCTION, got 'numpy'")
    refused(
        "reveal", "numpy:nothing", "--n", 4, match="function must exist, got 'numpy:nothing': AttributeError: module"
    )
    refused("reveal", "no_such:f", "--n", 4, match="No module named 'no_such'")
    refused(
        "reveal",
        "--n",
        4,
        "--write-probes",
        "x.npz",
        "--out-format",
        "float16",
        match="--out-format must be given with",
    )
    refused("reveal", "--n", 4, "--write-probes", "x.npz", "--svg", "x.svg", match="--svg must be given with")
    refused("invariance", "numpy:inner", "--rows", "5-1", match="--rows must be numbers from 1 to 65,536 and ranges")
    refused("invariance", "vllm_rms_norm", "--operands", 1, match="--operands must be given with a function alone")
    refused("invariance", "numpy:inner", "--rows", "1-99999999999", match="from 1 to 65,536")
    refused("reveal", "numpy:pi", "--n", 4, match="function must be callable, got 'numpy:pi', a float")
