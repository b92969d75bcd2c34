"""The spans of a recording: complete, each once, with parents, and the same at every import."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from otel_torchdist.cli.export.recording_spans.trace import Traces, traces_of
from otel_torchdist.model.calls import UNREAD
from otel_torchdist.model.ids import run_label
from otel_torchdist.model.kinds import Flag, How
from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan
from tests.cli.export.recording_spans.recordings import Found, RecordedWorld, stalled
from tests.support.receivers.memory_sink import MemorySink
from tests.support.worlds.fake_world import SECOND, START_NS, WALL_OFFSET_NS, group_of

EPOCH_NS = START_NS + WALL_OFFSET_NS
NOW_S = 60.0


def imported(found: Found, last: int | None = None, ranks: frozenset[int] | None = None) -> Traces:
    """Return the spans of a recording, after the checks of a sink: unique ids, parents first."""
    traces = traces_of(found.selected(last, ranks))
    MemorySink().emit(traces.spans)
    return traces


def with_findings(found: Found, **changed: Any) -> Found:
    """The same calls with other findings."""
    return dataclasses.replace(found, findings=dataclasses.replace(found.findings, **changed))


def named(traces: Traces, name: str) -> list[FinishedSpan]:
    """The spans with this name."""
    return [span for span in traces.spans if span.name == name]


def under(traces: Traces, parent: FinishedSpan) -> list[FinishedSpan]:
    """The spans below another."""
    return [span for span in traces.spans if span.parent_id == parent.span_id]


def test_root_ranks_and_calls() -> None:
    """The root describes the import. Below it is a bar for each rank, and below that its calls."""
    found = stalled(calls=20).found(NOW_S)
    traces = imported(found)
    [root] = named(traces, "imported flight recorder")
    assert root.parent_id is None
    assert root.attributes == {
        semconv.RUN: run_label(traces.run_id),
        semconv.WORLD_SIZE: 4,
        semconv.IMPORT_FILES: 4,
        semconv.IMPORT_FORMATS: ["2.10"],
        semconv.IMPORT_LIBRARIES: ["2.27.3"],
        semconv.IMPORT_RANKS: "0-3",
        semconv.IMPORT_CALLS: 83,
        semconv.IMPORT_OMITTED: 0,
        semconv.IMPORT_CLOCK: "each host's own",
        semconv.STALLED: True,
        semconv.VERDICT: "absent",
        semconv.VERDICT_RANKS: "2",
    }
    bars = under(traces, root)
    assert [bar.name for bar in bars] == [f"calls (rank {rank})" for rank in range(4)]
    assert [len(under(traces, bar)) for bar in bars] == [21, 21, 20, 21]
    assert {span.trace_id for span in traces.calls} == {root.trace_id}
    assert all(root.start_ns <= span.start_ns and span.end_ns <= root.end_ns for span in traces.calls)


def test_a_call_has_the_attributes_of_a_live_span() -> None:
    """A completed call lasts until the watchdog saw its end. Attributes that dumps lack, such as steps, are missing."""
    traces = imported(stalled(calls=1).found(NOW_S))
    span = named(traces, "all_reduce")[1]
    assert (span.start_ns, span.end_ns) == (EPOCH_NS, EPOCH_NS + SECOND // 1000)
    assert span.error is None
    assert span.attributes == {
        semconv.RANK: 1,
        semconv.RUN: run_label(traces.run_id),
        semconv.OPERATION: "all_reduce",
        semconv.REDUCE_OP: "sum",
        semconv.TENSOR_COUNT: 1,
        semconv.TENSOR_SHAPES: ["16"],
        semconv.TENSOR_DTYPES: ["float32"],
        semconv.TENSOR_DEVICE: "cpu",
        semconv.GROUP_HASH: group_of(0, 1, 2, 3).key,
        semconv.GROUP_SIZE: 4,
        semconv.GROUP_DESCRIPTION: "default_pg",
        semconv.CODE_FUNCTION: "train",
        semconv.CODE_FILE: "/home/user/train.py",
        semconv.CODE_LINE: 42,
        semconv.SEQUENCE: 1,
        semconv.MESSAGE_SIZE: 64,
        semconv.COMPLETION: "watchdog",
        semconv.COMPLETION_RESOLUTION: 0.12,
    }


def test_an_open_call_lasts_until_now_and_carries_the_verdict() -> None:
    """It is in progress, an error with the sentence, found by the searches for stalls, and linked to the incident."""
    found = stalled(calls=20).found(NOW_S)
    traces = imported(found)
    [incident] = traces.stalls
    in_progress = named(traces, "all_reduce (in progress)")
    assert [span.attributes[semconv.RANK] for span in in_progress] == [0, 1, 3]
    for span in in_progress:
        assert span.end_ns == EPOCH_NS + round(NOW_S * SECOND)
        assert span.error is not None and span.error.startswith("rank 2 has not entered all_reduce (sequence 21")
        assert span.attributes[semconv.STALLED] is True
        assert span.attributes[semconv.VERDICT] == "absent"
        assert span.attributes[semconv.COMPLETION] == "unknown"
        assert semconv.STEP not in span.attributes
        assert [link.span_id for link in span.links] == [incident[0].span_id]


def test_the_incident_has_the_shape_of_a_live_one() -> None:
    """A root with operation and verdict, a bar for each rank, and links to the calls that were imported with it."""
    traces = imported(stalled(calls=20).found(NOW_S))
    [[root, *bars]] = traces.stalls
    assert root.name == "stall: all_reduce (absent)"
    assert str(root.error).startswith("rank 2 has not entered all_reduce (sequence 21, default_pg) for up to 59.8 s")
    assert root.trace_id != traces.calls[0].trace_id
    assert root.attributes[semconv.RUN] == run_label(traces.run_id)
    assert [bar.name for bar in bars] == ["rank 2: absent", "rank 0: waiting", "rank 1: waiting", "rank 3: waiting"]
    known = {(span.trace_id, span.span_id) for span in traces.spans}
    links = {(link.trace_id, link.span_id) for span in traces.spans for link in span.links}
    assert links and links <= known
    assert not any(semconv.STEP in span.attributes for span in traces.spans)


def test_ranks_that_are_named_stand_out() -> None:
    """The bar of the rank that the verdict names is an error with the sentence; those of the others are not."""
    traces = imported(stalled(calls=3).found(NOW_S))
    errors = {bar.name: bar.error for bar in under(traces, traces.calls[0])}
    assert errors.pop("calls (rank 2)") == traces.stalls[0][0].error
    assert set(errors.values()) == {None}


def test_a_named_rank_without_calls_spans_the_trace() -> None:
    """The bar of a named rank with an empty dump is as long as the trace."""
    world = stalled(calls=5)
    world.recorded[2].ended.clear()
    traces = imported(world.found(NOW_S))
    [bar] = named(traces, "calls (rank 2)")
    root = traces.calls[0]
    assert (bar.start_ns, bar.end_ns) == (root.start_ns, root.end_ns)
    assert under(traces, bar) == []
    assert bar.attributes[semconv.IMPORT_CALLS] == 0


def test_without_a_verdict_nothing_is_an_error() -> None:
    """Healthy calls, one of which has just begun, give no error and no incident."""
    world = stalled(calls=5)
    traces = imported(world.found(now_s=0.06))
    assert traces.stalls == ()
    assert {span.error for span in traces.spans} == {None}
    [waits, *_] = named(traces, "all_reduce (in progress)")
    assert semconv.STALLED not in waits.attributes


def test_every_open_call_of_a_rank_is_explained() -> None:
    """A wait in another group names the cause elsewhere; a call queued behind others on the device is no error."""
    world = RecordedWorld(3)
    everyone, pair = group_of(0, 1, 2, description="default_pg"), group_of(0, 1, description="pair")
    world.train(everyone, 2)
    world.recorded[0].enter(everyone, 1)
    world.recorded[1].enter(pair, 2, blocking=False)
    world.recorded[1].enter(pair, 3, flags=Flag.ON_DEVICE)
    traces = imported(world.found(NOW_S))
    open_calls = [span for span in traces.calls if span.name.endswith("(in progress)")]
    by_sequence = {
        (span.attributes[semconv.GROUP_DESCRIPTION], span.attributes[semconv.SEQUENCE]): span.error
        for span in open_calls
    }
    verdict = "rank 2 has not entered all_reduce (sequence 3, default_pg)"
    assert str(by_sequence["default_pg", 3]).startswith(verdict)
    assert f"the cause is elsewhere: {verdict}" in str(by_sequence["pair", 1])
    assert by_sequence["pair", 2] is None


def test_what_no_dump_records_is_left_out() -> None:
    """Steps, tags and reduce ops are left out rather than shown as 0 or `?`. The peer is known."""
    world = RecordedWorld(2)
    pair = group_of(0, 1)
    world.recorded[0].enter(pair, 0, "send", flags=Flag.POINT_TO_POINT, peer=1, tag=1, reduce_op="")
    world.recorded[0].enter(pair, 0, reduce_op=UNREAD)
    traces = imported(world.found(NOW_S))
    assert traces.stalls
    left_out = {semconv.STEP, semconv.TAG, semconv.REDUCE_OP}
    assert all(left_out.isdisjoint(span.attributes) for span in traces.spans)
    [send] = named(traces, "send (in progress)")
    assert send.attributes[semconv.PEER] == 1


def test_sizes_that_otlp_cannot_hold_are_left_out() -> None:
    """A forged dump may state tensors of any size: its other attributes and spans are still sent."""
    found = stalled(calls=1).found(NOW_S)
    history = found.histories[0]
    first = history.operations[0]
    vast = dataclasses.replace(first, record=msgspec.structs.replace(first.record, message_bytes=1 << 80))
    odd = dataclasses.replace(history, operations=(vast, *history.operations[1:]))
    traces = imported(dataclasses.replace(found, histories=(odd, *found.histories[1:])))
    sizes = [span.attributes.get(semconv.MESSAGE_SIZE) for span in named(traces, "all_reduce")]
    assert sizes == [None, 64, 64, 64]


def test_a_call_that_raised_shows_its_error() -> None:
    """As in live spans."""
    world = RecordedWorld(1)
    number = world.recorded[0].enter(group_of(0), 0.0)
    world.recorded[0].end(number, 1.0, How.FAILED, "RuntimeError")
    [span] = named(imported(world.found(2.0)), "all_reduce")
    assert span.error == "all_reduce raised RuntimeError"
    assert span.attributes[semconv.ERROR_TYPE] == "RuntimeError"


def test_a_second_import_makes_the_same_spans() -> None:
    """Spans are identical for any order of the files, so a backend shows them once."""
    found = stalled(calls=30).found(NOW_S)
    shuffled = list(found.histories)
    random.Random(4).shuffle(shuffled)
    assert shuffled != list(found.histories)
    again = stalled(calls=30).found(NOW_S)
    assert imported(dataclasses.replace(found, histories=tuple(shuffled))) == imported(again)


def test_a_stated_world_size_changes_spans_not_the_run() -> None:
    """With another `--world-size`, the run stays the same, but its spans have other ids."""
    found = stalled(calls=3).found(NOW_S)
    stated = dataclasses.replace(
        found, histories=tuple(dataclasses.replace(one, world_size=9) for one in found.histories)
    )
    assert imported(stated).run_id == imported(found).run_id
    assert imported(stated).calls[0].trace_id != imported(found).calls[0].trace_id


@pytest.mark.parametrize(
    "changed",
    [
        lambda one: imported(one, last=7),
        lambda one: imported(one, ranks=frozenset({0, 2})),
        lambda one: imported(with_findings(one, judgments=())),
        lambda one: imported(with_findings(one, threshold_ns=one.findings.threshold_ns // 2)),
        lambda one: imported(dataclasses.replace(one, histories=one.histories[1:])),
    ],
    ids=["last", "ranks", "verdicts", "threshold", "files"],
)
def test_no_id_stands_for_two_different_spans(changed: Callable[[Found], Traces]) -> None:
    """Another selection of calls has other trace ids: a backend would mix spans with equal ids."""
    found = stalled(calls=30).found(NOW_S)
    ids = {(span.trace_id, span.span_id) for span in imported(found).spans}
    assert ids.isdisjoint((span.trace_id, span.span_id) for span in changed(found).spans)


def test_the_run_is_that_of_the_calls() -> None:
    """A different selection of the same files keeps the run, so that one search finds all; other calls have another."""
    found = stalled(calls=30).found(NOW_S)
    assert imported(found, last=7).run_id == imported(found).run_id
    assert imported(stalled(calls=31).found(NOW_S)).run_id != imported(found).run_id
