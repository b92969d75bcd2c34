"""Those who count without us agree with each other: profiler, flight recorder, DDP's own log and the program."""

from __future__ import annotations

from tests.figures.running import Run
from tests.figures.witness import DEFAULT, TEAM

OBJECTS = 2
"""Collectives for one object: its length, and itself."""


def test_calls_of_the_program(run: Run) -> None:
    """Where torch calls nothing itself, profiler and recorder have the calls and bytes that the program has counted."""
    for witness in run.witnesses:
        own = {(TEAM, "all_reduce"), (DEFAULT, "barrier"), (DEFAULT, "send" if witness.rank == 0 else "recv")}
        calls, sizes = witness.report["calls"], witness.report["sizes"]
        assert {place: witness.counts[place] for place in own} == {place: calls["/".join(place)] for place in own}
        assert {place: witness.sizes[place] for place in own} == {place: sizes["/".join(place)] for place in own}


def test_buckets(run: Run) -> None:
    """DDP reduces its buckets in each step, which it rebuilds after the first; the rest are evaluations."""
    for witness in run.witnesses:
        first, rebuilt = witness.report["bucket_bytes"], witness.report["rebuilt_bucket_bytes"]
        assert len(rebuilt) > 1
        place = DEFAULT, "all_reduce"
        calls = len(first) + (witness.steps - 1) * len(rebuilt)
        assert witness.counts[place] == calls + witness.report["calls"]["/".join(place)]
        sizes = sum(first) + (witness.steps - 1) * sum(rebuilt)
        assert witness.sizes[place] == sizes + witness.report["sizes"]["/".join(place)]


def test_objects(run: Run) -> None:
    """An object is gathered with its length."""
    for witness in run.witnesses:
        gathered = [call for call in witness.calls if call.group == TEAM and call.operation.startswith("all_gather")]
        assert len(gathered) == OBJECTS


def test_numbers(run: Run) -> None:
    """Gloo has numbered the collectives of each group from 1 on."""
    for witness in run.witnesses:
        for group in (DEFAULT, TEAM):
            numbers = [call.sequence for call in witness.calls if call.group == group and call.sequence]
            assert numbers == list(range(1, len(numbers) + 1))


def test_steps(run: Run) -> None:
    """Both ranks have taken as many steps as they have got batches for, and trained in each."""
    for witness in run.witnesses:
        counts = witness.report["counts"]
        assert counts["forward"] == counts["backward"] == counts["optimizer"] == witness.steps
        assert counts["batches"] > witness.steps
