"""Next steps that depend on evidence beyond the kind of the verdict."""

from __future__ import annotations

import dataclasses
import signal
from typing import Any

import pytest

from otel_torchdist.judge.verdict.first_death import FirstDeath
from otel_torchdist.judge.verdict.roll_call import Standing
from otel_torchdist.judge.verdict.verdict import Doubt, Verdict
from otel_torchdist.judge.verdict.wording.next_steps import next_step
from otel_torchdist.judge.world.places import PlaceSource, RankPlace
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.rank_state.lives import BY_CGROUP, Death
from otel_torchdist.model.rank_state.occupations import CheckpointView, ChildWait
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from tests.support.worlds.judging import late_world, located_verdict

LINE = CallSiteName("load_batch", "/home/ada/train.py", 57)


def verdict_of(kind: VerdictKind, place: RankPlace | None = None, **facts: Any) -> Verdict:
    """Build a verdict that names rank 2 of four."""
    verdict = located_verdict(late_world(2).snapshot(15.0))
    places = {**verdict.places, 2: place or RankPlace(PlaceSource.STACK, LINE)}
    return dataclasses.replace(verdict, kind=kind, places=places, **facts)


def died(status: int, **facts: Any) -> dict[str, Any]:
    """Build the first death of rank 2."""
    death = dataclasses.replace(Death(at_ns=0, status=status), **facts)
    return {"first": FirstDeath((2,), {2: death}, False, False, False, True, 0, None, 0)}


@pytest.mark.parametrize(
    ("facts", "step"),
    [
        (died(signal.SIGKILL), "find out who sent SIGKILL to rank 2: `dmesg` for the kernel"),
        (died(signal.SIGKILL, oom=BY_CGROUP), "have rank 2 use less memory"),
        (died(signal.SIGSEGV), "look for the core dump of rank 2"),
        (died(3 << 8), "read the log of rank 2 for the reason of exit code 3"),
        ({**died(1 << 8), "failures": {2: "ValueError"}}, "read the traceback of rank 2 in the log"),
        ({}, "find what ended rank 2: see the log"),
    ],
)
def test_deaths(facts: dict[str, Any], step: str) -> None:
    """The kind of a death determines the step."""
    assert next_step(verdict_of(VerdictKind.DEAD, **facts)).startswith(step)


def test_line_of_an_exception() -> None:
    """Only the line that raised is named, not an earlier line of the rank."""
    raised = RankPlace(PlaceSource.EXCEPTION, LINE, "ValueError")
    said = next_step(verdict_of(VerdictKind.DEAD, raised, failures={2: "ValueError"}))
    assert said == "read the traceback of rank 2 in the log, and look at load_batch at train.py:57"


@pytest.mark.parametrize(
    ("place", "step"),
    [
        (RankPlace(PlaceSource.STACK, LINE), "find out why rank 2 did not go on from load_batch at train.py:57; "),
        (RankPlace(PlaceSource.NOTHING, None), "find out why rank 2 did not go on from its last call; "),
        (
            RankPlace(PlaceSource.STACK, LINE, child=ChildWait(81, "DataLoader worker", "in read()", 0)),
            "find out what process 81 waits for (`py-spy dump --pid 81`",
        ),
        (
            RankPlace(PlaceSource.STACK, LINE, checkpoint=CheckpointView("save", "/ckpt/1200", 1, "", "write_data", 0)),
            "check the storage of checkpoint save /ckpt/1200",
        ),
    ],
)
def test_absence(place: RankPlace, step: str) -> None:
    """The activity of an absent rank determines the step."""
    assert next_step(verdict_of(VerdictKind.ABSENT, place)).startswith(step)


def test_departure() -> None:
    """A rank that left early made fewer calls."""
    verdict = verdict_of(VerdictKind.ABSENT)
    roll = dataclasses.replace(verdict.roll, standings={**verdict.roll.standings, 2: Standing.ENDED})
    assert next_step(dataclasses.replace(verdict, roll=roll)).startswith("find out why rank 2 left early")


@pytest.mark.parametrize(
    ("state", "step"),
    [
        ("T", "find out who stopped rank 2"),
        ("t", "detach the debugger"),
        ("D", "check the disk"),
        ("?", "find what keeps"),
    ],
)
def test_frozen(state: str, step: str) -> None:
    """The state of a frozen process determines the step."""
    place = RankPlace(PlaceSource.STACK, LINE, stopped=state)
    assert next_step(verdict_of(VerdictKind.FROZEN, place)).startswith(step)


@pytest.mark.parametrize("doubt", [None, *Doubt])
def test_doubts(doubt: Doubt | None) -> None:
    """Each doubt has a step that can remove it."""
    assert next_step(verdict_of(VerdictKind.UNKNOWN, doubt=doubt))
