"""What is reported of critical paths, one after the other."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest

from otel_torchdist.agent.path_watch.findings import MIN_PATHS, SlowParts, lengths_of, slow_parts_of
from otel_torchdist.analysis.critical_path.analysis import critical_path_of
from otel_torchdist.analysis.critical_path.critical_path import CriticalPath
from otel_torchdist.model.reports.finding import FindingKind, SlowPart
from tests.analysis.critical_path.simulated import Job

STEPS = 16


def path_of(times: Iterable[Sequence[float]], hosts: Sequence[str] = ()) -> CriticalPath:
    """The path of a job in which ranks compute before an all_reduce in each step as long as given, in ms."""
    job = None
    for step in times:
        job = job or Job(len(step), hosts)
        for rank, ms in enumerate(step):
            job.compute(rank, ms)
        job.collective(12)
        job.end_step()
    assert job is not None
    found = critical_path_of(job.histories())
    assert found is not None
    return found


def parts_of(*ms: float, hosts: Sequence[str] = ()) -> list[SlowPart]:
    """What is slow if each rank always computes that long."""
    return list(slow_parts_of(path_of([ms] * STEPS, hosts)))


def test_a_slow_rank_is_reported_once_with_its_line_and_gain() -> None:
    """It must be found three times in a row, and is gone when it was not found three times in a row."""
    known = SlowParts()
    reported = [known.update(parts_of(10, 10, 15, 10), 20.0 * nth) for nth in range(MIN_PATHS + 3)]
    assert [len(parts) for parts in reported] == [0, 0, 1, 0, 0, 0]
    [part] = reported[2]
    assert (part.kind, part.ranks, part.operation) == (FindingKind.SLOW_RANK, (2,), "all_reduce")
    assert part.call_site is not None and part.call_site.line == 12
    assert part.text == (
        "rank 2 computes 5.00 ms longer than its peers before all_reduce in mesh at train (train.py:12); "
        "without that, steps would be up to 5.00 ms (33%) shorter"
    )
    gone = [(known.update(parts_of(10, 10, 10, 10), 200.0), known.ended)[1] for _ in range(MIN_PATHS + 1)]
    assert gone == [[], [], [part], []]


def test_slow_for_some_seconds_is_not_reported() -> None:
    """However often it is found within half a minute: a busy machine may have been the reason."""
    known = SlowParts()
    parts = parts_of(10, 10, 15, 10)
    reported = [len(known.update(parts, seconds)) for seconds in (0, 5, 10, 15, 20, 25, 29.9, 30.1, 35)]
    assert reported == [0, 0, 0, 0, 0, 0, 0, 1, 0]


def test_now_one_and_now_another_is_not_reported() -> None:
    """Uneven data makes each path have another cause."""
    known = SlowParts()
    paths = [parts_of(*(15 if rank == slow else 10 for rank in range(4))) for slow in (0, 1, 2, 3) * 3]
    assert all(len(parts) == 1 for parts in paths)
    assert [known.update(parts, 30.0 * nth) for nth, parts in enumerate(paths)] == [[]] * 12


def test_less_than_a_tenth_of_a_step_is_not_reported() -> None:
    """A gain of 6 % is left to the command."""
    found = path_of([(10, 10, 10.7, 10)] * STEPS)
    assert found.causes
    assert list(slow_parts_of(found)) == []


def test_a_slow_node_instead_of_its_ranks() -> None:
    """Where several ranks of one node are slow, the node is the finding, and no rank of it is another one."""
    hosts = [f"node-{rank // 4}" for rank in range(12)]
    [part] = parts_of(*(14 if 4 <= rank < 8 else 10 for rank in range(12)), hosts=hosts)
    assert (part.kind, part.ranks) == (FindingKind.SLOW_NODE, (4, 5, 6, 7))
    assert part.text.startswith("ranks 4-7 on node-1 compute 4.00 ms longer than their peers on other nodes; without")


def test_a_rank_of_another_node_is_found_without_one_clock() -> None:
    """Ranks of two nodes are compared after their clocks have been aligned by what they do together."""
    hosts = ["a", "a", "b", "b"]
    skew_ns = 40_000_000
    job = Job(4, hosts, {"b": lambda true_ns: true_ns + skew_ns})
    for _ in range(STEPS):
        for rank in range(4):
            job.compute(rank, 15 if rank == 3 else 10)
        job.collective(12)
        job.end_step()
    found = critical_path_of(job.histories())
    assert found is not None
    assert [(part.kind, part.ranks) for part in slow_parts_of(found)] == [(FindingKind.SLOW_RANK, (3,))]


@pytest.mark.parametrize("count", [100, pytest.param(400, marks=pytest.mark.thorough)])
def test_chance_is_not_reported(count: int) -> None:
    """In hundreds of paths of ranks that differ by chance alone none is reported, though single ones have a cause."""
    draw = random.Random(18)
    known = SlowParts()
    paths = [
        list(slow_parts_of(path_of([[draw.lognormvariate(0, 0.33) * 10 for _ in range(4)] for _ in range(STEPS)])))
        for _ in range(count)
    ]
    assert [part for nth, parts in enumerate(paths) for part in known.update(parts, 30.0 * nth)] == []
    assert sum(bool(parts) for parts in paths) < count / 20 + 3


def test_what_metrics_show() -> None:
    """Lengths are seconds of an average step, and each gain names its ranks and operation."""
    lengths = lengths_of(path_of([(10, 10, 15, 10)] * STEPS))
    assert round(lengths.kinds["computing"], 6) == 0.015
    assert round(lengths.ranks[2], 6) == 0.015
    [gain] = [gain for gain in lengths.gains if gain.cause == "line"]
    assert (gain.ranks, gain.operation, round(gain.seconds, 6)) == ((2,), "all_reduce", 0.005)
