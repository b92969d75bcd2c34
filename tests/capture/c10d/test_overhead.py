"""The time that our own code takes, as the rank estimates it."""

from __future__ import annotations

from tests.support.launch.jobs import Jobs

MOST = 0.6
"""A third where planning is counted once; more than all of it where it is counted sixteen times."""


def test_calls_that_are_seen_for_the_first_time(jobs: Jobs) -> None:
    """Planning is counted once, also where a sample measures it: our part of calls is some of what they have taken."""
    [rank] = jobs.run("overhead", 1).ranks
    tries = rank.lines()
    # A sample stands for sixteen calls, and one in which the thread loses its core is left out: the best try counts.
    assert min(one["overhead_ns"] / one["took_ns"] for one in tries) < MOST
    assert all(one["overhead_ns"] > 0 for one in tries)
