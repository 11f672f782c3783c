"""Keys of JSON and CSV: those that the reference lists."""

import re
from pathlib import Path

import pytest
from command_line import csv_rows, rows

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"
LISTED = re.findall(r"^\| `lowprec (.+?)` \| `(.+)` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "keys"), LISTED, ids=[command for command, _ in LISTED])
def test_keys_are_those_of_the_reference(command, keys):
    for found in (rows(*command.split()), csv_rows(*command.split())):
        assert list(found[0]) == keys.split("` `")
