"""`lowprec vectors compare`: programs and files against sets, and what explains their differences.

A C encoder is compiled and tested; under Icarus Verilog one is driven by the hex encoding, as an RTL team does.
"""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from peers import missing
from tools import command

from lowprec.vectors.catalogue import split, vectors
from lowprec.vectors.compare import Difference, compare, row
from lowprec.vectors.vectors import spread

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def run(*arguments: object, code: int = 0) -> str:
    return command("vectors", *arguments, code=code)


@pytest.fixture(scope="module")
def compiler() -> str:
    return shutil.which("cc") or pytest.fail("a C compiler is needed: install one that is called cc")


MISTAKES = {
    "": "all 2094 answers are right",
    "-DTIES_AWAY": "all 126 fit: round to nearest, ties away from zero",
    "-DFLUSH": "all 110 fit: subnormal results flushed to zero",
    "-DNAN_CODE=0x7e": "all 12 fit: NaN becomes 0x7E or 0xFE",
    "-DFLUSH -DNAN_CODE=0x7e": "all 122 fit: subnormal results flushed to zero; NaN becomes 0x7E or 0xFE",
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_c_encoder_over_stdin(mistake: str, compiler: str, tmp_path: Path) -> None:
    program = tmp_path / "encode"
    subprocess.run([compiler, "-O2", *mistake.split(), "-o", program, EXAMPLES / "e4m3_encode.c"], check=True)
    output = run("compare", "cast/e4m3fn", "--command", program, code=bool(mistake))
    assert output.rstrip().endswith(MISTAKES[mistake]), output


def test_a_c_header_tests_the_encoder_itself(compiler: str, tmp_path: Path) -> None:
    run("write", "cast/e4m3fn", "decode/e4m3fn", "--encoding", "c", "--out", tmp_path)
    header = tmp_path / "cast_e4m3fn_nearest_even_ocp_sat.h"
    bridge = "#include <stdint.h>\nuint8_t e4m3_encode(uint32_t);\n"
    (tmp_path / "mine.h").write_text(bridge + "#define LOWPREC_FUNCTION(x, y) (*(y) = e4m3_encode(x))\n")
    for mistake, wrong in (([], 0), (["-DFLUSH"], 110)):
        command = [compiler, "-Wall", "-Wextra", "-Werror", "-DLOWPREC_SELF_TEST", *mistake, "-include", "mine.h"]
        command += ["-x", "c", header, EXAMPLES / "e4m3_encode.c", "-o", "test"]
        subprocess.run(command, check=True, cwd=tmp_path)
        done = subprocess.run([tmp_path / "test"], capture_output=True, text=True, check=False)
        assert done.returncode == (wrong > 0)
        assert f"{wrong} of 2094 vectors differ" in done.stdout


@pytest.mark.sampled(0, default=2)
@pytest.mark.parametrize("name", ["quantize/te_current", "quantize/nvfp4_te", "decode/e5m2"])
def test_a_c_header_compares_every_word_and_takes_any_nan(name: str, compiler: str, tmp_path: Path) -> None:
    """A function that always gives NaN, of another payload, is right for results of NaN alone."""
    s = vectors(name)
    run("write", s.name, "--encoding", "c", "--out", tmp_path)
    nan = [max((w for w in range((1 << f.bits) - 1) if f.is_nan(w)), default=0) if f.bits <= 8 else 0xFFC00001
           for f in s.results]  # fmt: skip
    answer = [word for f, word in zip(s.results, nan, strict=True) for _ in range(f.count)]
    wrong = sum(not s.same(v.results, tuple(answer)) for v in s.vectors)
    names = ", ".join(f.name for f in (*s.inputs, *s.results))
    given = "".join(f"(void)({f.name}); " for f in s.inputs)
    for f, word in zip(s.results, nan, strict=True):
        given += f"for (int k = 0; k < {f.count}; k++) {f.name}[k] = {word}u; "
    (tmp_path / "mine.h").write_text(f"#define LOWPREC_FUNCTION({names}) do {{ {given}}} while (0)\n")
    command = [compiler, "-Wall", "-Wextra", "-Werror", "-DLOWPREC_SELF_TEST", "-include", "mine.h", "-x", "c"]
    subprocess.run([*command, tmp_path / f"{s.stem}.h", "-o", "test"], check=True, cwd=tmp_path)
    done = subprocess.run([tmp_path / "test"], capture_output=True, text=True, check=False)
    assert f"{wrong} of {len(s)} vectors differ" in done.stdout
    assert wrong < len(s) or not name.startswith("decode")


def test_results_in_a_file(tmp_path: Path) -> None:
    s = vectors("decode/e2m1fn")
    right = tmp_path / "right.txt"
    right.write_bytes(b"".join(line.encode() + b"\n" for line in s.lines()))
    assert "all 16 answers are right" in run("compare", "decode/e2m1fn", "--results", right)
    wrong = tmp_path / "wrong.txt"
    wrong.write_text("".join(f"{v.results[0] if v.inputs[0] % 8 != 1 else 0:x} // {v.label}\n" for v in s.vectors))
    output = run("compare", "decode/e2m1fn", "--results", wrong, "--json", code=1)
    rows = json.loads(output[: output.rindex("]") + 1])
    assert rows[0] == {
        "vector": 1, "input": "0x1 (0.5)", "theirs": "0x00000000 (0)", "ours": "0x3f000000 (0.5)",
        "exercises": "least subnormal",
    }  # fmt: skip
    assert len(rows) == 2


def test_the_word_that_differs_is_shown_and_no_other_nan() -> None:
    s = vectors("quantize/te_current")
    vector = next(v for v in s.vectors if spread(s.results)[0].is_nan(v.results[0]))
    at = next(i for i, f in enumerate(spread(s.results)) if not f.is_nan(vector.results[i]))
    theirs = list(vector.results)
    theirs[0] ^= 0x80  # another NaN
    theirs[at] ^= 1
    assert row(s, Difference(0, vector, tuple(theirs)))["theirs"].startswith(f"[{at}] ")


@pytest.mark.peers
@pytest.mark.parametrize(
    ("options", "words"),
    [([], "all 2094 answers are right"), (["-DTIES_AWAY"], "all 126 fit: round to nearest, ties away from zero")],
)
def test_an_encoder_under_icarus_verilog(options: list[str], words: str, tmp_path: Path) -> None:
    if shutil.which("iverilog") is None:
        missing("Icarus Verilog", "apt-get install iverilog")
    run("write", "cast/e4m3fn", "--encoding", "hex", "--out", tmp_path)
    (file,) = tmp_path.glob("*.hex")
    bench, answers, source = tmp_path / "bench", tmp_path / "answers.txt", EXAMPLES / "e4m3_encode.v"
    subprocess.run(["iverilog", "-g2005", "-Wall", *options, "-o", bench, source], check=True)
    done = subprocess.run(["vvp", bench, f"+vectors={file}", "+count=2094"], check=True, capture_output=True, text=True)
    assert f"{126 if options else 0} of 2094 vectors differ" in done.stdout
    assert "WARNING" not in done.stdout + done.stderr
    answers.write_text(done.stdout)
    output = run("compare", "cast/e4m3fn", "--results", answers, code=bool(options))
    assert output.rstrip().endswith(words), output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--command", "true"), "answers must be 16 lines, one per vector of decode/e2m1fn, got 0"),
        (("--command", "no-such-program"), "No such file"), (("--command", "false"), "exit code 1"),
        (("--command", "echo z"), "answers must be 16 lines"), ((), "give either --command"),
        (("--command", "cat", "--results", "x"), "give either --command"), (("--results", "missing"), "No such file"),
        (("--command", "sh -c 'cat | sed s/.*/zz/'"), "answer 0 must be hexadecimal words, got 'zz'"),
        (("--command", "sed s/.*/123456789/"), "answer 0 must have 1 of 32 bits (y), got"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_one_line(arguments: tuple[str, ...], words: str) -> None:
    assert words in run("compare", "decode/e2m1fn", *arguments, code=2)


#: Sets, answers of another rule, and the words that must be found.
CAUSES = [
    ("cast/e4m3fn", "cast/e4m3fn/toward_zero", "round toward zero"),
    ("cast/e4m3fn", "cast/e4m3fn/nearest_even/ocp_nonsat", "policy ocp_nonsat"),
    ("cast/e5m2", "cast/e5m2/nearest_even/cuda_satfinite", "policy cuda_satfinite"),
    ("cast/e5m2/toward_zero", "cast/e5m2/up/torch_2_11", "round up, policy torch_2_11"),
    ("cast/e4m3fn", "cast/e4m3/nearest_even/ocp_sat", "codes of e4m3"),
    ("round/e4m3fn/nearest_even/ocp_sat/float64", "", "first rounded to float32"),
    ("decode/e4m3fn", "decode/e4m3fnuz", "read as e4m3fnuz"),
    ("stochastic/a", "stochastic/c", "StochasticC"),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "other", "words"), CAUSES, ids=[f"{a} by {c}" for a, _, c in CAUSES])
def test_one_rule_explains_all(name: str, other: str, words: str) -> None:
    s = vectors(name)
    family, parts = split(other or name)
    if other:
        answer = family.prepare(family.full(parts), 1, 0).answer
        shared = {v.inputs for v in vectors(other).vectors} & {v.inputs for v in s.vectors}
        assert len(shared) > len(s) / 2
    else:
        answer = next(rule.answer for rule in family.rules(parts, {}) if rule.words == words)
    found = compare(s, [answer(v.inputs) for v in s.vectors])
    assert found.explanations[0] == words, found.sentence


def test_noise_is_called_unexplained() -> None:
    s = vectors("cast/e2m1fn")
    answers = [((v.results[0] + 5 * i) % 16,) for i, v in enumerate(s.vectors)]
    found = compare(s, answers)
    assert not found
    assert not found.explanations
    assert "no known rule" in found.sentence
