"""Reduce ops are not read on every call. An unread reduce op is not compared."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from otel_torchdist.judge.stall.findings.silent_mismatch import PASSES_APART_NS, SilentMismatches
from otel_torchdist.judge.world.assembly import worlds
from otel_torchdist.judge.world.following.follower import TapeFollower
from otel_torchdist.judge.world.mismatch import Mismatch
from otel_torchdist.model.kinds import Flag
from otel_torchdist.tape.reading.reader import TapeReader
from tests.support.launch.jobs import Jobs

CALLS_PER_PASS = 16


def reported(tapes: list[Path]) -> list[Mismatch]:
    """Return the mismatches that a reader reports while it reads a running job periodically."""
    followers = [TapeFollower(TapeReader(tape)) for tape in tapes]
    watched = SilentMismatches()
    found: list[Mismatch] = []
    now_ns = 1
    for _ in range(60):
        for follower in followers:
            follower.observe(follower.reader.poll(CALLS_PER_PASS))
        now_ns += PASSES_APART_NS
        [world] = worlds(followers, now_ns)
        found += watched.find(dataclasses.replace(world, taken_ns=now_ns))
    return found


@pytest.mark.parametrize("every", [pytest.param("25", marks=pytest.mark.thorough), "4"])
def test_one_line_with_two_ops(jobs: Jobs, every: str) -> None:
    """Ranks that read the reduce op of a line at different calls have no mismatch."""
    job = jobs.run("reduce_ops", 2, every)
    if not job.ranks[0].line()["tells"]:
        pytest.skip("this torch does not tell the reduce op")
    read = [
        {one.raw.sequence for one in tape.operations if Flag.REDUCE_OP_UNREAD not in one.raw.flags}
        for tape in job.tapes
    ]
    count = len(job.tapes[0].operations)
    assert all(set(range(31, count, 31)) <= of for of in read), "read on every rank"
    assert min(map(len, read)) < count or all("CALLBACK" in {one.how for one in tape.operations} for tape in job.tapes)
    assert reported([tape.path for tape in job.tapes]) == []
