"""The example notebook runs, and every cell that ends in an object shows it."""

from pathlib import Path

import nbclient
import nbformat
import pytest

NOTEBOOK = Path(__file__).parents[1] / "docs" / "examples" / "objects.ipynb"


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Jupyter's own
def test_the_notebook_runs(tmp_path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "kept without outputs, which would be stale one day"
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [
        output["data"] for cell in notebook.cells if cell.cell_type == "code"
        for output in cell.outputs if output.output_type in ("execute_result", "display_data")
    ]  # fmt: skip
    assert sum("text/html" in data for data in shown) == 7
    assert sum("image/png" in data for data in shown) == 2
