"""Jobs under torchrun that come to a sudden end: who is named by the agent, and by `diagnose` from what is on disk."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from otel_torchdist import semconv
from tests.cli.running import until
from tests.faults.kills import THRESHOLD_S, LaunchedJob, kill_one, launched, problems
from tests.support.nodes import nodes, why_not
from tests.support.warm_python import WarmPython


def test_rank_is_killed(python: WarmPython) -> None:
    """SIGKILL in a busy loop of collectives; torchrun ends the others within 0.1 s."""
    victim, said = kill_one(random.Random(), python)
    assert problems(victim, said) == [], said
    (document,) = said.documents
    assert "was killed by SIGKILL 0." in document["verdict"]["sentence"]
    assert document["ranks"][victim]["death"]["signal"] == "SIGKILL"
    assert document["verdict"]["death"]["order"] == "seen"


def test_rank_is_killed_under_the_usual_torchrun() -> None:
    """The same where nothing of torchrun is changed for the tests."""
    victim, said = kill_one(random.Random(), None)
    assert problems(victim, said) == [], said


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_rank_is_killed_on_one_of_two_nodes(python: WarmPython) -> None:
    """The judge hears of the death from the other agent, on its own clock."""
    with nodes(2) as two:
        victim, said = kill_one(random.Random(), python, two)
    assert problems(victim, said) == [], said


def test_job_is_cancelled(python: WarmPython) -> None:
    """SIGTERM to torchrun, as schedulers send it: nobody is to blame, and `diagnose` says so."""
    with launched(python) as job:
        job.signal(signal.SIGTERM)
        job.wait_for_end()
        time.sleep(2)
        assert job.roots() == []
        (document,) = job.documents()
    assert document["verdict"] is None
    assert document["ended_together"]["sentence"].startswith("all ranks that died did so within 0.")


@pytest.mark.parametrize(
    ("deed", "verdict", "said"),
    [("raise", "dead", "rank 2 ended with ValueError"), ("exit", "dead", "rank 2 exited with code 3")],
)
def test_rank_ends_by_itself(python: WarmPython, deed: str, verdict: str, said: str) -> None:
    """An exception, or `os._exit`, on one rank; torchrun ends the others."""
    with launched(python) as job:
        job.order(2, deed)
        job.wait_for_end()
        found = job.said()
    assert set(found.agent) == {(verdict, "2")}, found
    assert found.sentences[0].startswith(said)
    assert found.disk == [(verdict, [2])]


def _wait_for_verdict(job: LaunchedJob, verdict: str) -> None:
    until(lambda: any(root.attributes[semconv.VERDICT] == verdict for root in job.roots()), THRESHOLD_S + 10)


@pytest.mark.parametrize(
    ("deed", "verdict", "by"),
    [("late", "absent", signal.SIGTERM), ("gil", "absent", signal.SIGINT), ("stop", "frozen", signal.SIGKILL)],
)
def test_job_that_hangs_is_ended(python: WarmPython, deed: str, verdict: str, by: signal.Signals) -> None:
    """Through torchrun, from a terminal, or by SIGKILL to all: the verdict stands, and only waiting ranks died."""
    with launched(python) as job:
        job.order(2, deed)
        _wait_for_verdict(job, verdict)
        if by is signal.SIGTERM:
            job.signal(by)
        else:
            for rank in range(4):
                os.kill(job.pid(rank), by)
            job.signal(signal.SIGTERM)
        found = job.said()
        until(lambda: len(list(job.base.glob("**/*.death"))) == 4)
        (document,) = job.documents()
    assert set(found.agent) == {(verdict, "2")}, found
    assert found.sentences[-1].startswith("the job was ended while it hung, after ")
    assert (document["verdict"]["kind"], document["verdict"]["ranks"]) == (verdict, [2])
    assert document["verdict"]["hung_s"] >= THRESHOLD_S
