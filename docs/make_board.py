"""The page of the conformance board, from reference_data/board.json."""

from __future__ import annotations

import json
from pathlib import Path

from lowprec.board import page as board

FILE = Path(__file__).parents[1] / "reference_data" / "board.json"


def page() -> str:
    """Return docs/board.md."""
    return board.page(json.loads(FILE.read_text(encoding="utf-8")))
