"""A question to an assistant about a job that hangs under torchrun, from the first call to the archive afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.commands.assistant import Assistant, assistant
from tests.support.launch.quiet import QUIET
from tests.support.launch.torchrun import Torchrun
from tests.support.launch.warm_python import WarmPython
from tests.support.waiting import until

WORKER: Final = Path(__file__).parent / "workers" / "evaluates_alone.py"
SLEEPING: Final = next(n for n, line in enumerate(WORKER.read_text().splitlines(), 1) if "time.sleep(600)" in line)
pytestmark = pytest.mark.thorough


def _diagnosis(client: Assistant) -> dict[str, Any] | None:
    """The diagnosis once it has the line of rank 1, for which the agent has asked."""
    if not client.call("list_runs")["runs"]:
        return None
    answer = client.call("diagnose")
    return answer if f"evaluate at evaluates_alone.py:{SLEEPING}" in answer["summary"] else None


def test_from_question_to_archive(warm_python: WarmPython, base: Path, tmp_path: Path) -> None:
    """The steps of the prompt lead to rank 1 and its line, its page and its stack; then the archive is analyzed."""
    archive = tmp_path / "archive"
    environ = {
        **QUIET,
        "OTEL_PYTHON_TORCHDIST_READER": "agent",
        "GLOO_SOCKET_IFNAME": "lo",
        "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(base),
        "OTEL_PYTHON_TORCHDIST_ARCHIVE": str(archive),
        "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "2000",
    }
    arguments = ["--nproc-per-node=3", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", WORKER]
    job = Torchrun(warm_python, tmp_path / "job", arguments, environ)
    try:
        with assistant(base, OTEL_PYTHON_TORCHDIST_ARCHIVE=str(archive)) as client:
            found: list[dict[str, Any]] = []

            def is_found() -> bool:
                found.extend(filter(None, [_diagnosis(client)]))
                return bool(found)

            until(is_found)
            [run] = [run for run in client.call("list_runs")["runs"] if run["state"] == "running"]
            verdict = found[0]["diagnosis"]["verdict"]
            assert (verdict["kind"], verdict["ranks"], verdict["waiting"]) == ("absent", [1], [0, 2])
            assert "alive, but execute other code" in client.read(found[0]["runbook"][0])
            [rank] = client.call("stacks", ranks=[1])["ranks"]
            assert rank["source"] == "earlier"
            assert any(f"evaluates_alone.py:{SLEEPING}" in thread["frames"][0] for thread in rank["threads"])
            job.close()
            until(lambda: (run["id"], [0, 1, 2]) in [(each["id"], each["ranks"]) for each in _archived(client)])
            answer = client.call("analyze", run=run["id"][:8], path=str(archive), section="calls", by="operation")
            rows = {row["operation"]: row for row in answer["analysis"]["calls"]["rows"]}
            assert rows["all_reduce"]["calls_by_rank"] == {"0": 21, "1": 20, "2": 21}
            assert "an archive, which lacks the state" in client.error_of("diagnose", path=str(archive))
    finally:
        job.close()


def _archived(client: Assistant) -> list[dict[str, Any]]:
    return [run for run in client.call("list_runs")["runs"] if run["state"] == "archived"]
