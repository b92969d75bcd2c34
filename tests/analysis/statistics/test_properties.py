"""Properties of the statistics of any histories, and the same figures computed independently."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_torchdist.analysis.statistics.compute import statistics_of
from otel_torchdist.analysis.statistics.grouping import GroupingKey
from otel_torchdist.analysis.statistics.result import BandwidthOver, Row, Statistics
from otel_torchdist.model.calls import Channel, OperationView
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.kinds import How, Phase, RecordKind
from otel_torchdist.model.names import CallSiteName, SignatureName
from otel_torchdist.model.operations import EXACT
from tests.support.tapes.made_records import made_operation, made_view
from tests.support.worlds.fake_world import group_of

GROUPS = (group_of(0, 1, 2), group_of(0, 2), group_of(1, 2, nth=1))
SITES = (CallSiteName("step", "/home/ada/train.py", 10), CallSiteName("save", "/home/ada/train.py", 20), None)
SIGNATURE = SignatureName("all_reduce", "sum", ((4,),), ("float32",), "cpu", 1)
ENDS = (How.CALL, How.WAIT, How.CALLBACK, How.POLL, How.FAILED, None)


@st.composite
def runs(draw: st.DrawFn) -> list[RankHistory]:
    """Draw three ranks that call operations in three groups in one order. Some stop early; times are arbitrary."""
    program = draw(
        st.lists(
            st.tuples(
                st.sampled_from(GROUPS),
                st.sampled_from(["all_reduce", "all_gather", "broadcast", "barrier"]),
                st.sampled_from([0, 100, 5_000, 2_000_000]),
            ),
            max_size=25,
        )
    )
    histories = []
    for rank in range(3):
        stops = draw(st.integers(min_value=len(program) // 2, max_value=len(program)))
        calls = [
            (group, name, size, draw(st.integers(0, 50)), draw(st.integers(1, 100)), draw(st.sampled_from(ENDS)))
            for group, name, size in program[:stops]
            if rank in group.members
        ]
        histories.append(history_of_calls(rank, calls, draw(st.sampled_from(SITES))))
    return histories


def history_of_calls(rank: int, calls: list[tuple], site: CallSiteName | None) -> RankHistory:
    """Build a history from the group, operation, bytes, time before entry, duration and kind of end of each call."""
    sequences: defaultdict[str, itertools.count[int]] = defaultdict(lambda: itertools.count(1))
    views = []
    now_ns = 1_000
    for number, (group, name, size, after_ns, lasts_ns, how) in enumerate(calls, 1):
        now_ns += after_ns
        sequence = next(sequences[group.key])
        record = made_operation(
            number,
            now_ns,
            sequence,
            message_bytes=size,
            peer=min(group.members) if name == "broadcast" else -1,
            completed_ns=None if how is None else now_ns + lasts_ns,
            how=how,
            phase=list(Phase)[number % len(Phase)],
        )
        views.append(made_view(record, name, Channel(RecordKind.OPERATION, group.key), group, SIGNATURE, site))
        now_ns += lasts_ns // 2
    return RankHistory(rank, 3, "node-1", 0, tuple(views), 0, "clock")


SUMS = ("calls", "open", "failed", "timed", "not_timed", "message_bytes", "time_ns", "split", "wait_ns", "transfer_ns")


def sums(found: Statistics) -> dict[str, int]:
    """Return the sums over all rows."""
    return {name: sum(getattr(row, name) for row in found.rows) for name in SUMS}


@given(runs(), st.sets(st.sampled_from(list(GroupingKey))))
def test_rows_add_up_for_any_grouping(histories: list[RankHistory], keys: set[GroupingKey]) -> None:
    """Rows of any grouping have the same sums, and these are the sums over ranks."""
    found, whole = statistics_of(histories, keys), statistics_of(histories, ())
    assert sums(found) == sums(whole)
    assert len(whole.rows) == min(sum(len(history.operations) for history in histories), 1)
    for name in ("calls", "open", "failed", "message_bytes"):
        assert sums(found)[name] == sum(getattr(totals, name) for totals in found.ranks)
    assert sum(row.compared for row in found.rows) == sum(totals.came_last for totals in found.ranks)
    for row in found.rows:
        assert row.wait_ns + row.transfer_ns <= row.time_ns
        assert row.split <= row.timed <= row.calls
        assert row.median_ns is None or row.median_ns <= (row.p99_ns or 0)


@given(runs(), st.randoms(use_true_random=False))
def test_order_of_ranks_changes_nothing(histories: list[RankHistory], chance: random.Random) -> None:
    """Histories in any order have the same statistics, to the last digit."""
    shuffled = list(histories)
    chance.shuffle(shuffled)
    assert statistics_of(shuffled, tuple(GroupingKey)) == statistics_of(histories, tuple(GroupingKey))


@given(runs())
def test_independent_computation(histories: list[RankHistory]) -> None:
    """Waits and bandwidth of all_reduce and all_gather equal their definitions in exact fractions."""
    rows = {
        (row.operation, row.group.key if row.group is not None else None): row
        for row in statistics_of(histories, (GroupingKey.OPERATION, GroupingKey.GROUP)).rows
    }
    for group in GROUPS:
        for name, times, factor in (
            ("all_reduce", 1, Fraction(2 * (len(group.members) - 1), len(group.members))),
            ("all_gather", len(group.members), Fraction(len(group.members) - 1, len(group.members))),
        ):
            row = rows.get((name, group.key))
            if row is not None:
                check(
                    row,
                    [meeting for meeting in meetings_of(histories, group.key) if meeting[0].name == name],
                    times,
                    factor,
                )


def meetings_of(histories: list[RankHistory], group: str) -> list[list[OperationView]]:
    """Return the calls at each position of a group that all its members have reached."""
    by_sequence: defaultdict[int, list[OperationView]] = defaultdict(list)
    for history in histories:
        for view in history.operations:
            if view.operation_id.channel.group == group:
                by_sequence[view.record.sequence].append(view)
    members = next(len(view.members) for view in GROUPS if view.key == group)
    return [views for views in by_sequence.values() if len(views) == members]


def check(row: Row, meetings: list[list[OperationView]], times: int, factor: Fraction) -> None:
    """Compare a row with its definition."""
    waited = moved = took = split = 0
    for views in meetings:
        last_ns = max(view.record.entered_ns for view in views)
        for record in (view.record for view in views):
            if record.how not in EXACT or record.completed_ns is None:
                continue
            transfer_ns = max(record.completed_ns - max(last_ns, record.entered_ns), 0)
            waited += record.completed_ns - record.entered_ns - transfer_ns
            split += 1
            if record.message_bytes:
                moved += record.message_bytes * times
                took += transfer_ns
    assert (row.split, row.wait_ns) == (split, waited)
    if took and moved:
        assert row.bandwidth is not None and row.bandwidth.over is BandwidthOver.TRANSFER
        assert row.bandwidth.algorithm_bytes_per_second == pytest.approx(float(Fraction(moved * 10**9, took)))
        assert row.bandwidth.bus_bytes_per_second == pytest.approx(float(Fraction(moved * 10**9, took) * factor))
