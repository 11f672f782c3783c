"""What the programs of this folder share: the table in README.md says which bytes each file has."""

import hashlib
import re
from pathlib import Path


def record(path: Path) -> None:
    """Write the hash of a file of this folder into its row of README.md."""
    table = path.with_name("README.md")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    row = rf"(\| {re.escape(path.name)} \|.*\| )[0-9a-f]{{64}}( \|)"
    table.write_text(re.sub(row, rf"\g<1>{digest}\g<2>", table.read_text()))
