"""What a report's timeline shows of nodes with different clocks, without a browser."""

from __future__ import annotations

import dataclasses
from itertools import accumulate

from otel_torchdist.show.report.build import ReportChoice, report_basis, windows_of
from otel_torchdist.show.report.columns import TimeWindow
from tests.analysis.critical_path.simulated import MS, Job

SECOND = 1_000 * MS


def window_of(wall_ms: int, ahead_ns: int) -> TimeWindow:
    """The newest steps of a job on two nodes; the second one's clocks are wrong."""
    job = Job(4, ["a", "a", "b", "b"], {"b": lambda ns: ns + ahead_ns})
    for _ in range(6):
        for rank in range(4):
            job.compute(rank, 3 + 2 * (rank == 2))
        job.collective(10, ms=0.1)
        job.end_step()
    histories = [
        dataclasses.replace(history, wall_offset_ns=wall_ms * MS * (history.host == "b")) for history in job.histories()
    ]
    found = report_basis(histories, 30 * SECOND)
    [window] = windows_of(
        found, [], False, ReportChoice(), lambda ranks: (one for one in histories if one.rank in ranks), str
    )
    return window


def test_bars_of_nodes_are_aligned_by_their_meetings() -> None:
    """Bars and the critical path are where they are on one clock, whatever wall clocks say; the bound is shown."""
    straight, shown = window_of(0, 0), window_of(40, 7 * SECOND)
    assert (shown.length_ns, shown.lanes, shown.marks) == (straight.length_ns, straight.lanes, straight.marks)
    assert shown.path == straight.path != ()
    assert {lane.rank for lane in shown.lanes} == {0, 1, 2, 3}
    calls = [lane for lane in shown.lanes if lane.group >= 0]
    ends = [[at + length for at, length in zip(accumulate(lane.begin), lane.length, strict=True)] for lane in calls]
    assert ends.count(ends[0]) == 4
    assert shown.remarks == (
        "clocks: 2 nodes are aligned by the operations in which their ranks meet, to ± 2.10 ms; "
        "ranks of one node are on its monotonic clock",
    )
