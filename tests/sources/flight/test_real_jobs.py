"""The dumps of two real jobs, in each of which two ranks were at fault: both are named, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from otel_torchdist.judge.verdict.past.last_moment import LastMoment
from otel_torchdist.judge.verdict.past.post_mortem import roots_of
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.sources.flight.reading.reader import read_dumps
from otel_torchdist.sources.flight.snapshot import moment_of

DATA = Path(__file__).parent / "data"
KINDS = {"gpu_error_1st": VerdictKind.STUCK, "lock_gil_1st": VerdictKind.ABSENT}


def judged(job: str, without: int | None = None) -> list[Verdict]:
    """The verdicts on a job, without the dump of one rank."""
    dumps = [one for one in read_dumps([DATA / job]).dumps if one.rank != without]
    return roots_of(LastMoment(moment_of(dumps).world, False, {}), StallRules(10_000_000_000))


def named(verdicts: list[Verdict]) -> set[int]:
    """All ranks that verdicts name."""
    return {rank for verdict in verdicts for rank in verdict.ranks}


def faulty(job: str) -> set[int]:
    """The ranks into which the fault was injected."""
    text = (DATA / job / "fault_injection.log").read_text()
    return {int(rank) for rank in re.findall(r"^Rank (\d+),", text, re.MULTILINE)}


@pytest.mark.parametrize("job", sorted(KINDS))
def test_all_dumps(job: str) -> None:
    """From all dumps: exactly the ranks at fault."""
    verdicts = judged(job)
    assert named(verdicts) == faulty(job)
    assert {verdict.kind for verdict in verdicts} == {KINDS[job]}


@pytest.mark.parametrize("job", sorted(KINDS))
@pytest.mark.parametrize("rank", range(16))
def test_without_one(job: str, rank: int) -> None:
    """Whichever dump is missing: no rank is named that is not at fault."""
    assert named(judged(job, rank)) <= faulty(job)
