"""Alignment of nodes' clocks by the operations in which their ranks meet, in simulated time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import pytest

from otel_torchdist.analysis.clocks.alignment import Alignment, ClockAligner
from otel_torchdist.model.history import RankHistory
from otel_torchdist.sources.history.call_table import RankCalls
from tests.analysis.critical_path.simulated import MS, START_NS, Job

HOSTS = ["a", "a", "b", "b"]
SECOND = 1_000 * MS


def alignment_of(histories: Iterable[RankHistory]) -> Alignment:
    """Align the clocks of histories."""
    aligner = ClockAligner()
    for history in histories:
        aligner.add(RankCalls(history))
    return aligner.alignment()


def ddp(job: Job, steps: int) -> Job:
    """Add steps of ten asynchronous operations each, without recorded waits, as in DDP."""
    for _ in range(steps):
        for line in range(10):
            for rank in range(len(job.now)):
                job.compute(rank, 1)
            job.launch(line)
        job.join(0.3)
        job.end_step()
    return job


def ahead(job: Job, **wall_ms: int) -> list[RankHistory]:
    """Return the histories, with an error added to each host's wall clock."""
    return [
        dataclasses.replace(history, wall_offset_ns=wall_ms.get(history.host, 0) * MS) for history in job.histories()
    ]


def test_wall_clocks_do_not_count_where_ranks_meet() -> None:
    """Wall clocks differ by 40 ms and meetings show an offset of 0: times do not move, even without recorded waits."""
    alignment = alignment_of(ahead(ddp(Job(4, HOSTS), 6), b=40))
    assert alignment.offset_ns(3, START_NS) == 0
    assert alignment.bound_ns == 0.3 * MS
    assert alignment.epoch_ns(0, START_NS) == alignment.epoch_ns(2, START_NS) == START_NS
    assert alignment.sentence == (
        "2 nodes are aligned by the operations in which their ranks meet, to ± 300 µs; "
        "ranks of one node are on its monotonic clock"
    )


def test_clocks_that_run_apart() -> None:
    """A clock gains 50 µs a second for minutes: each aligned time is within the bound, and inverts to 1 µs."""

    def clock(true_ns: int) -> int:
        return true_ns + 7 * SECOND + (true_ns - START_NS) // 20_000

    job = Job(4, HOSTS, {"b": clock})
    for _ in range(300):
        for rank in range(4):
            job.compute(rank, 999)
        job.collective(1, ms=1)
    found = alignment_of(job.histories())
    for at_ns in range(START_NS, job.now[0], 10 * SECOND):
        assert abs(found.epoch_ns(2, clock(at_ns)) - at_ns) <= found.bound_ns < 2 * MS
        assert abs(found.epoch_ns(2, found.on_clock_of(2, at_ns)) - at_ns) <= 1_000


def test_over_other_clocks() -> None:
    """A node that meets only an intermediate node is aligned through it, and the bounds add up."""
    clocks: dict[str, Callable[[int], int]] = {"b": lambda ns: ns + 5 * SECOND, "c": lambda ns: ns - 9 * SECOND}
    job = Job(3, ["a", "b", "c"], clocks)
    for _ in range(9):
        job.collective(1, (0, 1), ms=1)
        job.compute(2, 1)
        job.collective(2, (1, 2), ms=2)
    found = alignment_of(job.histories())
    offsets = [(clock.offset_ns, clock.bound_ns) for clock in found.clocks]
    assert offsets == [(0, 0), (-5 * SECOND, 1 * MS), (9 * SECOND, 3 * MS)]


def test_wall_clocks_where_ranks_do_not_meet() -> None:
    """A node that meets no other is aligned by its wall clock, and named."""
    job = Job(4, ["a", "b", "c", "c"])
    job.collective(1, (0, 1), ms=1)
    found = alignment_of(ahead(job, c=40))
    assert found.epoch_ns(2, 0) == 40 * MS
    assert not found.is_bounded
    assert "to ± 1.00 ms; ranks 2-3 shared no operation with others, and wall clocks align them;" in found.sentence


@pytest.mark.parametrize(("wall_ms", "shift_ms"), [(0, 0), (40, 1)])
def test_clocks_without_a_name(wall_ms: int, shift_ms: int) -> None:
    """If the source does not record which ranks share a clock, wall clocks count within the bounds of meetings."""
    job = Job(4, HOSTS)
    for _ in range(5):
        job.collective(1, ms=1)
    found = alignment_of(dataclasses.replace(history, clock="") for history in ahead(job, b=wall_ms))
    assert found.epoch_ns(3, 0) == shift_ms * MS
    assert found.epoch_ns(1, 0) == 0


def test_memory_is_bounded() -> None:
    """A long run keeps a bounded number of operations, and the same operations of each rank."""
    job = Job(2, ["a", "b"], {"b": lambda ns: ns + SECOND})
    for _ in range(20_000):
        job.collective(1, ms=1)
    first, second = job.histories()
    newest = dataclasses.replace(second, operations=second.operations[777:])
    [_, other] = alignment_of([first, newest]).clocks
    assert (other.offset_ns, other.bound_ns) == (-SECOND, 1 * MS)
    assert 3_800 < other.meetings <= 4_096


def test_damaged_times() -> None:
    """Contradictory meetings still yield an offset, and times that can be drawn."""
    job = Job(2, ["a", "b"], {"b": lambda ns: -ns // 3})
    for _ in range(50):
        job.compute(0, 900)
        job.collective(1, ms=1)
    found = alignment_of(job.histories())
    assert found.bound_ns >= 0
    assert isinstance(found.epoch_ns(1, 5), int)


def test_no_ranks() -> None:
    """Without ranks there are no clocks."""
    found = alignment_of([])
    assert (found.clocks, found.bound_ns, found.is_one_clock) == ((), 0, False)
