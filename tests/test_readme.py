"""The README's Python examples run and print what it says; its commands are the ones that CI runs."""

import doctest
import json
import re
from pathlib import Path

import pytest

import lowprec as lp

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    test = doctest.DocTestParser().get_doctest(EXAMPLES[number], {}, f"README example {number}", str(README), 0)
    assert test.examples, "an example without a prompt would never run"
    runner = doctest.DocTestRunner(optionflags=flags)
    report: list[str] = []
    with lp.formats.scoped(), lp.quantizers.scoped():  # what an example registers goes with it
        runner.run(test, out=report.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(report)


def test_it_is_a_front_door() -> None:
    """Findings, speed and evidence have pages of their own in docs/."""
    text = README.read_text()
    assert len(EXAMPLES) >= 3
    assert len(text.splitlines()) <= 130
    assert len(text.split()) <= 1100
    assert len(re.findall(r"^\|[-:| ]+\|$", text, flags=re.MULTILINE)) <= 3, "tables"
    commands = re.findall(r"^python3 -m venv .*$", text, flags=re.MULTILINE)
    assert ["pytest" in command for command in commands].count(True) == len(commands) - 1 == 1


def test_one_sum_of_14_bits_on_every_page() -> None:
    """The same operands and the same error wherever it is shown, with the word that it is of positive numbers."""
    start, tutorial = ((ROOT / "docs" / name).read_text() for name in ("start.md", "gallery/plot_8_own_machine.py"))
    operands = "rng.random((64, 4096), np.float32), rng.random((128, 4096), np.float32)"
    for text in (README.read_text(), start, tutorial, lp.gemm.__doc__):
        assert operands in text
        assert re.search("positive", text, re.I)
        assert len(re.findall(r"rng\.random\(\(", text)) == 2
    for text in (README.read_text(), start):
        assert "\nNone 7.90%\n128 0.06%\n" in text
    assert "['0.06%', '7.90%']" in lp.gemm.__doc__
    ((sums, quantization),) = re.findall(r"^sum (.*), quantization (.*)$", start, re.M)
    said = " ".join(README.read_text().split())
    assert f"the accumulation error is {sums} (rms) and the quantization error {quantization}" in said


def test_numbers_are_those_of_their_pages() -> None:
    """What the README quotes stands, to the digit, in the page that its command writes."""
    readme, docs = README.read_text(), ROOT / "docs"
    speed, exactness = (docs / "speed.md").read_text(), (docs / "exactness.md").read_text()
    (ratios,) = re.findall(r"at ([\d.]+x) to ([\d.]+x) of our own float32 product", " ".join(readme.split()))
    assert all(f"{ratio})" in speed.partition("\n## ")[0] for ratio in ratios)
    assert "0 of 240,000" in readme
    assert "| 240,000 | 0 |" in exactness
    for study, arm, words in (
        ("from_scratch", "dsv3", ("+0.333 %", "[+0.027, +0.638]")),
        ("from_scratch", "fp4_naive", ("+2.444 %", "[+1.842, +3.045]")),
        ("from_scratch", "perturb", ("0.850 %",)),
    ):
        results = json.loads((ROOT / "ablations" / "results" / f"{study}.json").read_text())
        (sentence,) = (found["sentence"] for found in results["arms"] if found["arm"] == arm)
        for said in words:
            assert said in sentence
            assert said in readme
