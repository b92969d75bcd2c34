"""Threads that communicate at the same time, which on a Python without the GIL run at the same time, too."""

from __future__ import annotations

from collections import Counter

from tests.support.launch.jobs import Jobs

THREADS = 6
GROUPS = 2
ROUNDS = 150


def test_no_call_is_lost(jobs: Jobs) -> None:
    """Every call of every thread is recorded once, ended, in order, with its line; the program's results are right."""
    job = jobs.run("threads")
    assert job.ranks[0].line()["results"] == [4.0] * THREADS
    (tape,) = job.tapes
    calls = [one for one in tape.operations if one.function == "train"]
    by_group = Counter(one.raw.group for one in calls)
    assert list(by_group.values()) == [2 * ROUNDS] * THREADS * GROUPS
    for group in by_group:
        numbers = [one.raw.sequence for one in calls if one.raw.group == group]
        assert numbers == list(range(1, 2 * ROUNDS + 1))
        assert len({one.raw.thread for one in calls if one.raw.group == group}) == 1
    assert all(one.has_ended for one in calls)
    assert len({one.raw.call_site for one in calls}) == 2
