"""The example notebook runs from its first to its last cell on recorded runs, and shows what it says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.runs.conftest import STEPS, RecordedJobs
from tests.support.repository import REPOSITORY

NOTEBOOK = REPOSITORY / "docs" / "examples" / "read_a_run.ipynb"


def _shown(cell: Any) -> str:
    """The output of a cell: its HTML, its picture, its text."""
    texts: list[str] = []
    for output in cell.get("outputs", []):
        data = output.get("data", {"text/plain": output.get("text", "")})
        texts += [text if isinstance(text, str) else json.dumps(text) for text in data.values()]
    return "\n".join(texts)


@pytest.mark.process
@pytest.mark.thorough
@pytest.mark.filterwarnings("default")  # Jupyter's own
def test_example(jobs: RecordedJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell runs; tables, pictures and the comparison appear in their cells."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    for library in ("ipykernel", "altair", "polars"):
        pytest.importorskip(library)
    monkeypatch.setenv("OTEL_PYTHON_TORCHDIST_TAPE_DIR", str(jobs.tapes))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=120).execute()
    shown = {cell["source"].split("\n")[0]: _shown(cell) for cell in notebook.cells if cell["cell_type"] == "code"}
    assert "nobody holds the run up" in shown["result = after.diagnose()"]
    assert "<th>operation</th>" in shown["after.calls"]
    assert f"{4 * STEPS}" in shown["("]  # all_reduce of two parameters on two ranks
    assert "steady steps" in shown["path = after.critical_path()"]
    assert "vega" in shown["after.plot_steps()"]
    assert '"operation"' in shown["first, last = path.steps.last - 3, path.steps.last"]
    assert "a step takes" in shown["compare(before, after)"]


def test_is_stored_without_outputs() -> None:
    """The notebook holds no outputs, which would be of another machine."""
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []
