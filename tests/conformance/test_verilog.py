"""A Verilog encoder under Icarus Verilog, driven by the hex encoding: what an RTL team does with a set."""

import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from peers import missing

from lowprec.cli.app import cli

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "e4m3_encode.v"


@pytest.mark.peers
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "all 2094 answers are right"),
        (["-DTIES_AWAY"], "all 126 fit: round to nearest, ties away from zero"),
    ],
)
def test_an_encoder_under_icarus_verilog(options: list[str], words: str, tmp_path: Path) -> None:
    if shutil.which("iverilog") is None:
        missing("Icarus Verilog", "apt-get install iverilog")
    run = CliRunner().invoke
    assert run(cli, ["vectors", "write", "cast/e4m3fn", "--to", "hex", "--out", str(tmp_path)]).exit_code == 0
    (file,) = tmp_path.glob("*.hex")
    bench = tmp_path / "bench"
    subprocess.run(["iverilog", "-g2005", "-Wall", *options, "-o", bench, EXAMPLE], check=True)
    done = subprocess.run(["vvp", bench, f"+vectors={file}", "+count=2094"], check=True, capture_output=True, text=True)
    assert f"{126 if options else 0} of 2094 vectors differ" in done.stdout
    assert "WARNING" not in done.stdout + done.stderr
    answers = tmp_path / "answers.txt"
    answers.write_text(done.stdout)
    said = run(cli, ["vectors", "check", "cast/e4m3fn", "--results", str(answers)])
    assert said.exit_code == bool(options)
    assert said.output.rstrip().endswith(words), said.output
