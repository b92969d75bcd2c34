"""`diagnose` on jobs of real ranks that were killed as a whole after one of them had been stopped for a while."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from otel_torchdist.node.processes.state import HEARTBEAT_LATE_NS
from tests.cli.export.hung_jobs import HUNG_S, HungJob, hang
from tests.support.commands.asking import ask
from tests.support.launch.warm_python import WarmPython
from tests.support.waiting import until

pytestmark = pytest.mark.thorough
SILENT_S = HEARTBEAT_LATE_NS / 1e9 + 2.0
FAULTS = [("stop", 3), ("gil_blocked", 3), ("late", 3)]


def silent_s(job: HungJob, rank: int) -> float:
    """For how long a rank has given no sign of life."""
    return ask(job.base, "--json", threshold_s=HUNG_S).document["ranks"][rank]["silent_s"]


@pytest.fixture(scope="module")
def jobs(warm_python: WarmPython, module_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, HungJob]:
    """In each job the others wait for rank 2; where that is only late, rank 1, which waits, is stopped in the end."""

    def stop_one_that_waits(jobs: Mapping[str, HungJob]) -> None:
        os.kill(jobs["late"].job.pids[1], signal.SIGSTOP)
        for fault, rank in (("stop", 2), ("gil_blocked", 2), ("late", 1)):
            until(lambda job=jobs[fault], rank=rank: silent_s(job, rank) > SILENT_S)

    return hang(warm_python, module_base, tmp_path_factory.mktemp("silent"), FAULTS, stop_one_that_waits)


def verdict_on(job: HungJob) -> dict[str, Any]:
    """The verdict, from the tapes alone."""
    answer = ask(job.base, "--json", threshold_s=HUNG_S)
    assert answer.code == 1
    return answer.document["verdict"]


@pytest.mark.parametrize("fault", ["stop", "gil_blocked"])
def test_silent_rank_is_named(jobs: Mapping[str, HungJob], fault: str) -> None:
    """Stopped or held by native code, which no tape tells apart from a death: the sentence has all three."""
    verdict = verdict_on(jobs[fault])
    assert (verdict["kind"], verdict["ranks"], verdict["waiting"]) == ("dead", [2], [0, 1])
    assert verdict["death"]["is_silence"]
    assert verdict["sentence"].startswith(
        "rank 2 fell silent, and all_reduce (sequence 4, default_pg) has been blocked "
    )
    assert "died or was stopped, or native code did not release its GIL" in verdict["sentence"]
    assert verdict["age_s"] > SILENT_S - 1.5


def test_one_that_waits_is_not_named(jobs: Mapping[str, HungJob]) -> None:
    """A rank that has come and is stopped afterwards is not blamed for one that has not come."""
    verdict = verdict_on(jobs["late"])
    assert (verdict["kind"], verdict["ranks"]) == ("absent", [2])
