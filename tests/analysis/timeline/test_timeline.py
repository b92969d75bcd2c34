"""What a timeline shows of histories, read back with Perfetto's own messages."""

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
from otel_torchdist.analysis.timeline.rank_timeline import Extent
from otel_torchdist.analysis.timeline.reading import aligned, timeline_of
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
    """The timeline of histories, checked."""
    aligner = ClockAligner()
    calls = [RankCalls(history) for history in histories]
    for one in calls:
        aligner.add(one)
    alignment = aligner.alignment()
    ranks = [timeline_of(one, aligner.wall_offset_ns(one), extent) for one in calls]
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
            (one.begin, one.arguments["sequence"], one.arguments["bytes"])
            for one in timeline.slices
            if one.rank == history.rank
        )
        called = [(view.record, view.record.arrived_ns + history.wall_offset_ns) for view in history.operations]
        assert shown == sorted((at, record.sequence, record.message_bytes) for record, at in called)


@given(st.integers(min_value=0, max_value=(1 << 64) - 1))
def test_numbers(value: int) -> None:
    """Numbers are encoded as protobuf encodes them."""
    assert messages.TrackEvent.FromString(number(11, value)).track_uuid == value
    assert len(varint(value)) == max(1, -(-value.bit_length() // 7))


def test_flows_lead_from_the_last_to_the_others(three: Ranks) -> None:
    """The last to arrive is connected with the end of each other call; a meeting without one of them is not."""
    for rank, at in ((0, 10), (1, 30), (2, 20)):
        three.call(rank, at, 40)
    three.call(0, 50, 60, sequence=2)
    timeline = drawn(three.histories())
    assert [(start.rank, end.rank) for start, end in timeline.flows()] == [(1, 0), (1, 2)]
    assert not drawn(three.histories()[:2]).flows()


def test_flows_of_many_ranks(tmp_path: Path) -> None:
    """Of more than 16 members only the one that waited longest is connected."""
    ranks = Ranks(tmp_path, 17)
    for rank in range(17):
        ranks.call(rank, 100 - rank, 200)
    assert [(start.rank, end.rank) for start, end in drawn(ranks.histories()).flows()] == [(0, 16)]
    ranks.close()


def test_lanes(three: Ranks) -> None:
    """Calls that overlap are in different lanes; a lane is used again as soon as it is free."""
    three.call(0, 0, 30)
    three.call(0, 10, 20, sequence=2)
    three.call(0, 20, 25, sequence=3)
    three.call(0, 40, 50, sequence=4)
    timeline = drawn(three.histories()[:1])
    assert [one.path[-1] for one in timeline.named("all_reduce")] == ["lane 1", "lane 2", "lane 2", "lane 1"]


def test_open_calls_and_steps(three: Ranks) -> None:
    """An open call lasts up to the last sign of life; each step up to its end, the first from the first call."""
    three.call(0, 10, 20)
    three.call(0, 50, sequence=2)
    [history, *_] = three.histories()
    history = dataclasses.replace(history, until_ns=90 * MS, steps=(StepMark(9, 30 * MS, 0, 1),), wall_offset_ns=0)
    timeline = drawn([history])
    [call] = timeline.named("all_reduce (open)")
    assert (call.begin, call.end) == (50 * MS, 90 * MS)
    assert call.arguments["end"] == "open; drawn up to the last sign of life"
    steps = [(one.name, one.begin, one.end) for one in timeline.slices if one.path[1] == "steps"]
    assert steps == [("step 0", 10 * MS, 30 * MS), ("step 1", 30 * MS, 90 * MS)]


def test_clocks(three: Ranks) -> None:
    """Ranks of a node keep their common clock whatever their wall clocks say; nodes that do not meet are shifted."""
    for rank in range(3):
        three.call(rank, 10, 20, sequence=1 + rank // 2)
    pairs = [("a", 1000 * MS), ("a", 1003 * MS), ("b", 2000 * MS)]
    histories = [
        dataclasses.replace(history, clock=clock, wall_offset_ns=offset)
        for history, (clock, offset) in zip(three.histories(), pairs, strict=True)
    ]
    timeline = drawn(histories)
    assert [one.begin for one in timeline.named("all_reduce")] == [1010 * MS, 1010 * MS, 2010 * MS]
    [description] = timeline.descriptions
    assert description.startswith("2 nodes are aligned by their wall clocks")
    unnamed = [dataclasses.replace(history, clock="") for history in histories]
    assert "does not record which ranks share a clock" in str(drawn(unnamed).descriptions)
    assert drawn(histories[:2]).descriptions == {"all ranks are on one monotonic clock"}


def test_nodes_are_aligned_by_their_meetings() -> None:
    """Wall clocks that are 40 ms apart move no bar where meetings show one time, and no arrow goes back in time."""
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
    assert {one.end for one in calls if one.rank < 2} == {one.end for one in calls if one.rank > 1}
    flows = timeline.flows()
    assert Counter((start.rank, end.rank) for start, end in flows) == {(3, 0): 5, (3, 1): 5, (3, 2): 5}
    assert all(end.end - start.begin == 0.1 * MS for start, end in flows)
    [description] = timeline.descriptions
    assert description.startswith("2 nodes are aligned by the operations in which their ranks meet, to ± 2.10 ms;")


def test_selection(three: Ranks) -> None:
    """Steps and times choose calls; what reaches into the time is shown."""
    for nth in range(4):
        three.call(0, 10 * nth, 10 * nth + 5, sequence=nth + 1)
    [history, *_] = three.histories()
    operations = (
        dataclasses.replace(view, record=msgspec.structs.replace(view.record, step=nth))
        for nth, view in enumerate(history.operations)
    )
    history = dataclasses.replace(history, wall_offset_ns=0, operations=tuple(operations))

    def sequences(extent: Extent) -> list[int]:
        return [one.arguments["sequence"] for one in drawn([history], extent).named("all_reduce")]

    assert sequences(Extent(steps=(1, 2))) == [2, 3]
    assert sequences(Extent(window_ns=(4 * MS, 10 * MS))) == [1, 2]
    assert sequences(Extent(steps=(7, 8))) == []


def test_hostile_names(three: Ranks) -> None:
    """A lone surrogate does not keep the rest from being written."""
    three.call(0, 1, 2)
    [history, *_] = three.histories()
    timeline = drawn([dataclasses.replace(history, host="a\ud800b\x1b[31m")])
    assert ranks_in(timeline.slices) == [0]
