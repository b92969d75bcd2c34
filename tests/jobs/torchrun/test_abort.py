"""`OTEL_PYTHON_TORCHDIST_ON_STALL=dump,abort` under a real torchrun: a hang becomes a restart, and leaves evidence."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_torchdist.node.job.requests.commands import EXIT_CODE
from tests.jobs.torchrun.recording import TWO_RANKS, WORKERS, switched_on
from tests.support.commands.running import kill_processes_of
from tests.support.launch.torchrun import Torchrun
from tests.support.launch.warm_python import WarmPython
from tests.support.tapes.recorded import read_tapes

FAILURE = "StallAborted"
ON_STALL = {
    # Else the second attempt finds addresses of the first in torchrun's store, and gloo hangs, with or without us.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    "OTEL_PYTHON_TORCHDIST_ON_STALL": "dump,abort",
    "OTEL_PYTHON_TORCHDIST_ON_STALL_GRACE": "300",
    "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "5000",  # less would be a stall where ranks start slowly
    "OTEL_TRACES_EXPORTER": "none",
}


def verdict_in(directory: Path) -> dict[str, str]:
    """The verdict in the only bundle."""
    [path] = directory.glob("*.tar.gz")
    with tarfile.open(path) as bundle:
        name = next(name for name in bundle.getnames() if name.endswith("/verdict.json"))
        file = bundle.extractfile(name)
        assert file is not None
        return json.load(file)


def aborted(base: Path) -> list[int]:
    """Ranks that report that they have ended because of the stall."""
    return [tape.identity.rank for tape in read_tapes(base) if tape.failure == FAILURE]


@pytest.fixture(autouse=True)
def none_is_left(tmp_path: Path) -> Iterator[None]:
    """Kill ranks that hang unexpectedly: they are in sessions of their own."""
    yield
    kill_processes_of(tmp_path / "tapes")


@pytest.mark.thorough
def test_stalled_job_is_started_again(warm_python: WarmPython, tmp_path: Path) -> None:
    """Rank 1 holds the GIL in C and has to be killed; torchrun restarts both, and they train to the end."""
    dumps = tmp_path / "dumps"
    environ = switched_on(tmp_path / "tapes") | ON_STALL | {"OTEL_PYTHON_TORCHDIST_DUMP_DIR": str(dumps)}
    command = [*TWO_RANKS, "--max-restarts=1", WORKERS / "stalls_once.py", "in_c"]
    done = Torchrun(warm_python, tmp_path / "output", command, environ).end()
    assert done.code == 0, done.err
    assert done.out.count("trained to the end") == 2
    assert verdict_in(dumps)["ranks"] == "1"
    assert aborted(tmp_path / "tapes") == [0]  # rank 1 could no longer report anything


def test_launcher_reports_why(warm_python: WarmPython, tmp_path: Path) -> None:
    """Without restarts torchrun ends, and its report has the verdict: which rank, in which collective, and where."""
    dumps = tmp_path / "dumps"
    environ = switched_on(tmp_path / "tapes") | ON_STALL | {"OTEL_PYTHON_TORCHDIST_DUMP_DIR": str(dumps)}
    done = Torchrun(warm_python, tmp_path / "output", [*TWO_RANKS, WORKERS / "stalls_once.py", "asleep"], environ).end()
    assert done.code == 1
    assert "trained to the end" not in done.out
    assert "StallAborted: rank 1 has not entered all_reduce (sequence 11, default_pg)" in done.err
    assert f"exitcode  : {EXIT_CODE}" in done.err
    assert "stalls_once.py:" in done.err
    assert aborted(tmp_path / "tapes")  # torchrun may end the other one first
