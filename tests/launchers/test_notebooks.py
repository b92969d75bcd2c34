"""Notebooks run by `jupyter execute`: ranks forked from a cell, and a kernel that is a rank itself."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest

from deploy.native.ports import free_port
from tests.launchers.conftest import Start
from tests.launchers.started import EXAMPLES, StartedJob, assert_hang_is_shown, assert_job_goes_on, needs, program

pytestmark = [pytest.mark.thorough, pytest.mark.rare]
NOTEBOOK = EXAMPLES / "notebook" / "training.ipynb"
AS_A_RANK = """\
import os
os.environ["OTEL_PYTHON_TORCHDIST_ENABLED"] = "true"
import torch, torch.distributed as dist
os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="{port}")
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(3))
"""


def late_line() -> int:
    """The line of the wait in its cell: no file that a user knows has the cell's code."""
    cells = ["".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text())["cells"]]
    cell = next(cell for cell in cells if "time.sleep(late_s)" in cell)
    return next(number for number, line in enumerate(cell.splitlines(), 1) if "time.sleep(late_s)" in line)


def execute(start: Start, notebook: Path, **environ: str) -> StartedJob:
    """Execute a notebook as users do where nobody watches; the executed copy is `executed.ipynb`."""
    output = Path("executed.ipynb")
    return start(program("jupyter"), "execute", notebook, "--output", output, **environ)


def text_of(notebook: Path) -> str:
    """The text that the cells of an executed notebook have printed."""
    cells = json.loads(notebook.read_text())["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    return "".join("".join(output.get("text", ())) for output in outputs)


def test_hang(start: Start, tmp_path: Path) -> None:
    """The late rank is named in the terminal and below the cell; the kernel, which is no rank, ends as usual."""
    needs("accelerate")
    copy = tmp_path / NOTEBOOK.name
    copy.write_bytes(NOTEBOOK.read_bytes())
    job = execute(start, copy, LATE_RANK="1", LATE_S="20", NOTEBOOK_PORT=str(free_port()))
    assert_hang_is_shown(job, f".py:{late_line()}")
    assert "it is in load_batch at " in job.notices[0]
    assert_job_goes_on(job)
    shown = text_of(tmp_path / "executed.ipynb")
    assert shown.count("otel_torchdist: rank 1 has not entered all_reduce (") == 1
    assert "on 2 ranks" in shown


def test_kernel_as_the_only_rank(start: Start, tmp_path: Path) -> None:
    """A kernel that switches recording on, and creates a group, is a run that has finished, not one that has died."""
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    sources = (AS_A_RANK.format(port=free_port()), "dist.barrier()\nprint('done')")
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    notebook = tmp_path / "one_rank.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), notebook)
    job = execute(start, notebook, OTEL_PYTHON_TORCHDIST_ENABLED="false")
    assert job.end() == 0, job.output
    assert not job.notices
    assert text_of(tmp_path / "executed.ipynb") == "done\n"
    diagnosed = job.diagnose()
    assert "1 of 1 ranks report" in diagnosed
    assert "rank 0 has finished" in diagnosed
