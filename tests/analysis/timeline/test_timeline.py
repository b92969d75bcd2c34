"""Timelines of histories, read back with Perfetto's protobuf classes."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as messages

from otel_torchdist.analysis.clocks.alignment import ClockAligner
from otel_torchdist.analysis.timeline.drawing import aligned, timeline_of
from otel_torchdist.analysis.timeline.rank_timeline import Extent
from otel_torchdist.analysis.timeline.trace import TraceWriter
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.operations import StepMark
from otel_torchdist.sources.history.call_table import RankCalls
from otel_torchdist.telemetry.protobuf import number, varint
from tests.analysis.critical_path.simulated import Job
from tests.analysis.statistics.histories import MS, Ranks
from tests.analysis.statistics.test_properties import runs
from tests.analysis.timeline.checker import Timeline, ranks_in

EVERYTHING = Extent()


def drawn(histories: Sequence[RankHistory], extent: Extent = EVERYTHING) -> Timeline:
    """Draw histories, and check and return the timeline."""
    aligner = ClockAligner()
    calls = [RankCalls(history) for history in histories]
    for of_rank in calls:
        aligner.add(of_rank)
    alignment = aligner.alignment()
    ranks = [timeline_of(of_rank, aligner.wall_offset_ns(of_rank), extent) for of_rank in calls]
    ranks = [aligned(rank, alignment) for rank in ranks]
    return Timeline(b"".join(TraceWriter(ranks, None, alignment.sentence).pieces()))


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Ranks]:
    """Three ranks."""
    ranks = Ranks(tmp_path)
    yield ranks
    ranks.close()


@given(runs())
def test_all_histories(histories: list[RankHistory]) -> None:
    """Every call is one slice with its sequence, step, bytes and end, and the trace keeps the format's rules."""
    timeline = drawn(histories)
    for history in histories:
        shown = sorted(
            (bar.begin, bar.arguments["sequence"], bar.arguments["bytes"])
            for bar in timeline.slices
            if bar.rank == history.rank
        )
        called = [(view.record, view.record.arrived_ns + history.wall_offset_ns) for view in history.operations]
        assert shown == sorted((at, record.sequence, record.message_bytes) for record, at in called)


@given(st.integers(min_value=0, max_value=(1 << 64) - 1))
def test_numbers(value: int) -> None:
    """Numbers have protobuf's encoding."""
    assert messages.TrackEvent.FromString(number(11, value)).track_uuid == value
    assert len(varint(value)) == max(1, -(-value.bit_length() // 7))


def test_flows_lead_from_the_last_to_the_others(three: Ranks) -> None:
    """Flows connect the last arrival to the ends of the other calls, if all members are known."""
    for rank, at in ((0, 10), (1, 30), (2, 20)):
        three.call(rank, at, 40)
    three.call(0, 50, 60, sequence=2)
    timeline = drawn(three.histories())
    assert [(start.rank, end.rank) for start, end in timeline.flows()] == [(1, 0), (1, 2)]
    assert not drawn(three.histories()[:2]).flows()


def test_flows_of_many_ranks(tmp_path: Path) -> None:
    """With more than 16 members, only the longest wait is connected."""
    ranks = Ranks(tmp_path, 17)
    for rank in range(17):
        ranks.call(rank, 100 - rank, 200)
    assert [(start.rank, end.rank) for start, end in drawn(ranks.histories()).flows()] == [(0, 16)]
    ranks.close()


def test_lanes(three: Ranks) -> None:
    """Overlapping calls are in different lanes, and a free lane is reused at once."""
    three.call(0, 0, 30)
    three.call(0, 10, 20, sequence=2)
    three.call(0, 20, 25, sequence=3)
    three.call(0, 40, 50, sequence=4)
    timeline = drawn(three.histories()[:1])
    assert [bar.path[-1] for bar in timeline.named("all_reduce")] == ["lane 1", "lane 2", "lane 2", "lane 1"]


def test_open_calls_and_steps(three: Ranks) -> None:
    """Open calls are drawn up to the last sign of life; steps up to their end, the first from the first call."""
    three.call(0, 10, 20)
    three.call(0, 50, sequence=2)
    [history, *_] = three.histories()
    history = dataclasses.replace(history, until_ns=90 * MS, steps=(StepMark(9, 30 * MS, 0, 1),), wall_offset_ns=0)
    timeline = drawn([history])
    [call] = timeline.named("all_reduce (open)")
    assert (call.begin, call.end) == (50 * MS, 90 * MS)
    assert call.arguments["end"] == "open; drawn up to the last sign of life"
    steps = [(bar.name, bar.begin, bar.end) for bar in timeline.slices if bar.path[1] == "steps"]
    assert steps == [("step 0", 10 * MS, 30 * MS), ("step 1", 30 * MS, 90 * MS)]


def test_clocks(three: Ranks) -> None:
    """Ranks of a node share a clock in spite of different wall clocks; nodes that do not meet use wall clocks."""
    for rank in range(3):
        three.call(rank, 10, 20, sequence=1 + rank // 2)
    pairs = [("a", 1000 * MS), ("a", 1003 * MS), ("b", 2000 * MS)]
    histories = [
        dataclasses.replace(history, clock=clock, wall_offset_ns=offset)
        for history, (clock, offset) in zip(three.histories(), pairs, strict=True)
    ]
    timeline = drawn(histories)
    assert [bar.begin for bar in timeline.named("all_reduce")] == [1010 * MS, 1010 * MS, 2010 * MS]
    [description] = timeline.descriptions
    assert description.startswith("2 nodes are aligned by their wall clocks")
    unnamed = [dataclasses.replace(history, clock="") for history in histories]
    assert "does not record which ranks share a clock" in str(drawn(unnamed).descriptions)
    assert drawn(histories[:2]).descriptions == {"all ranks are on one monotonic clock"}


def test_nodes_are_aligned_by_their_meetings() -> None:
    """Meetings align nodes whose wall clocks differ by 40 ms, and no flow goes back in time."""
    job = Job(4, ["a", "a", "b", "b"])
    for _ in range(5):
        job.compute(3, 2)
        job.collective(10, ms=0.1)
        job.end_step()
    histories = [
        dataclasses.replace(history, wall_offset_ns=40 * MS * (history.host == "b")) for history in job.histories()
    ]
    timeline = drawn(histories)
    calls = timeline.named("all_reduce")
    assert {bar.end for bar in calls if bar.rank < 2} == {bar.end for bar in calls if bar.rank > 1}
    flows = timeline.flows()
    assert Counter((start.rank, end.rank) for start, end in flows) == {(3, 0): 5, (3, 1): 5, (3, 2): 5}
    assert all(end.end - start.begin == 0.1 * MS for start, end in flows)
    [description] = timeline.descriptions
    assert description.startswith("2 nodes are aligned by the operations in which their ranks meet, to ± 2.10 ms;")


def test_selection(three: Ranks) -> None:
    """Steps and times select calls, including calls that only overlap the time."""
    for nth in range(4):
        three.call(0, 10 * nth, 10 * nth + 5, sequence=nth + 1)
    [history, *_] = three.histories()
    operations = (
        dataclasses.replace(view, record=msgspec.structs.replace(view.record, step=nth))
        for nth, view in enumerate(history.operations)
    )
    history = dataclasses.replace(history, wall_offset_ns=0, operations=tuple(operations))

    def sequences(extent: Extent) -> list[int]:
        return [bar.arguments["sequence"] for bar in drawn([history], extent).named("all_reduce")]

    assert sequences(Extent(steps=(1, 2))) == [2, 3]
    assert sequences(Extent(window_ns=(4 * MS, 10 * MS))) == [1, 2]
    assert sequences(Extent(steps=(7, 8))) == []


def test_hostile_names(three: Ranks) -> None:
    """A lone surrogate does not keep the rest from being written."""
    three.call(0, 1, 2)
    [history, *_] = three.histories()
    timeline = drawn([dataclasses.replace(history, host="a\ud800b\x1b[31m")])
    assert ranks_in(timeline.slices) == [0]
