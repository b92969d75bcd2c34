"""The reports on a stall: markers, the incident's trace, log events, log lines."""

from __future__ import annotations

import dataclasses
import itertools
import logging

import pytest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor

from otel_torchdist.judge.stall.events import TimeoutShort
from otel_torchdist.judge.stall.reporting.reporter import StallReporter
from otel_torchdist.model.ids import anchor_span_id, operation_span_id, run_label, trace_id_of_step
from otel_torchdist.model.kinds import How
from otel_torchdist.model.names import AtTimeout
from otel_torchdist.model.reports.incident import LinkTarget
from otel_torchdist.model.snapshot import RankView
from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan
from tests.support.receivers.memory_sink import MemorySink
from tests.support.worlds.detectors import EVERYBODY, LOAD_BATCH, Watching, stalled
from tests.support.worlds.fake_world import RUN, SECOND, START_NS, WALL_OFFSET_NS, FakeWorld, group_of

STALLED_S = 5.0


class Anchors:
    """A replacement for the spans of steps that provides one anchor per rank."""

    def __init__(self, sink: MemorySink) -> None:
        self.sink = sink
        self.known: dict[int, LinkTarget] = {}
        self.incidents: set[LinkTarget] = set()

    def cut_for_stall(self, nonce: int, number: int, now_ns: int, incident: LinkTarget) -> LinkTarget:
        """The rank's anchor."""
        self.incidents.add(incident)
        if nonce not in self.known:
            target = LinkTarget(trace_id_of_step(RUN, 0), anchor_span_id(nonce, 0, 0))
            start_ns, end_ns = START_NS + WALL_OFFSET_NS, now_ns + WALL_OFFSET_NS
            self.sink.emit([FinishedSpan("step", target.trace_id, target.span_id, None, start_ns, end_ns, {})])
            self.known[nonce] = target
        return self.known[nonce]


class Elsewhere:
    """A replacement for spans of steps that another process creates."""

    def cut_for_stall(self, nonce: int, number: int, now_ns: int, incident: LinkTarget) -> None:
        """No anchor."""


class Reported:
    """A watched world whose stalls are reported."""

    def __init__(self, world: FakeWorld, began_s: float = 0.0, anchors: Anchors | None = None) -> None:
        self.watching = Watching(world, began_s=began_s)
        self.anchors = anchors or Anchors(MemorySink())
        self.sink = self.anchors.sink
        self.logs = InMemoryLogRecordExporter()
        provider = LoggerProvider(shutdown_on_exit=False)
        provider.add_log_record_processor(SimpleLogRecordProcessor(self.logs))
        self.reporter = StallReporter(self.sink, provider.get_logger("otel_torchdist"), self.anchors)
        self.reported = 0

    def until(self, then_s: float) -> None:
        """Watch and report."""
        self.watching.until(then_s)
        events = [event for _, event in self.watching.events]
        self.reporter.report(events[self.reported :])
        self.reported = len(events)

    def named(self, text: str) -> list[FinishedSpan]:
        """Spans whose name contains a text."""
        return [span for span in self.sink.spans if text in span.name]


def view_of(rank: int) -> RankView:
    """The snapshot of a rank that has done nothing."""
    return FakeWorld(4).ranks[rank].view(0)


def test_marker_is_the_open_ended_bar() -> None:
    """A marker lasts from the operation's start to now, below the anchor of its step, with error and links."""
    world, numbers = stalled(since_s=STALLED_S)
    watching = Reported(world)
    watching.until(17.0)
    markers = watching.named("all_reduce (in progress)")
    assert [span.attributes[semconv.RANK] for span in markers] == [0, 1, 3]
    marker, nonce = markers[0], view_of(0).nonce
    assert marker.trace_id == trace_id_of_step(RUN, 0)
    assert marker.parent_id == anchor_span_id(nonce, 0, 0)
    assert marker.start_ns == START_NS + WALL_OFFSET_NS + round(STALLED_S * SECOND)
    assert 10.0 <= (marker.end_ns - marker.start_ns) / 1e9 <= 10.3
    assert marker.error is not None
    assert marker.error.startswith("rank 2 has not entered all_reduce (sequence 2, default_pg) for 10.")
    (root,) = watching.named("stall: ")
    future = LinkTarget(marker.trace_id, operation_span_id(nonce, numbers[0]))
    assert marker.links == (future, LinkTarget(root.trace_id, root.span_id))
    assert watching.anchors.incidents == {marker.links[1]}
    assert marker.attributes[semconv.STALLED] is True
    assert marker.attributes[semconv.VERDICT] == "absent"
    assert marker.attributes[semconv.VERDICT_RANKS] == "2"
    assert marker.attributes[semconv.VERDICT_COVERAGE] == "4/4"
    assert marker.attributes[semconv.SEQUENCE] == 2
    assert marker.attributes[semconv.CODE_FILE] == "/home/user/train.py"


def test_marker_without_an_anchor_is_a_root_in_its_step() -> None:
    """If another process creates the spans of the step, the marker is a root span in the step's trace."""
    watching = Watching(stalled(since_s=STALLED_S)[0]).until(17.0)
    sink = MemorySink()
    reporter = StallReporter(sink, LoggerProvider(shutdown_on_exit=False).get_logger("otel_torchdist"), Elsewhere())
    reporter.report(event for _, event in watching.events)
    markers = [span for span in sink.spans if "in progress" in span.name]
    assert len(markers) == 3
    assert {(span.parent_id, span.trace_id) for span in markers} == {(None, trace_id_of_step(RUN, 0))}


def test_marker_of_a_consequence_names_its_own_operation_and_the_cause() -> None:
    """The marker of an operation that waits behind another one states its operation and the cause."""
    world = FakeWorld(3)
    world.ranks[0].enter(group_of(0, 1, description="tp"), 5.0)
    world.ranks[1].enter(group_of(1, 2, description="dp"), 5.0)
    watching = Reported(world)
    watching.until(17.0)
    error = watching.named("(in progress)")[0].error
    assert error is not None
    assert error.startswith(
        "all_reduce (sequence 1, tp) has been blocked for 10.0 s; the cause is elsewhere: rank 2 has not"
    )


def test_incident_trace() -> None:
    """A root with the verdict, and a bar per member: the missing rank first, with its stack, then the waiting ranks."""
    world, numbers = stalled(since_s=STALLED_S)
    watching = Reported(world)
    watching.until(17.0)
    (root,) = watching.named("stall: ")
    assert root.name == "stall: all_reduce (absent)"
    assert root.parent_id is None
    assert root.error is not None
    assert "it is in load_batch at train.py:57" in root.error
    assert root.attributes[semconv.STALL_EPOCH] == 1
    bars = watching.sink.under(root)
    assert [bar.name for bar in bars] == ["rank 2: absent", "rank 0: waiting", "rank 1: waiting", "rank 3: waiting"]
    missing, waiting = bars[0], bars[1]
    assert missing.attributes[semconv.CODE_FUNCTION] == LOAD_BATCH.function
    assert missing.attributes[semconv.CODE_LINE] == LOAD_BATCH.line
    assert "line 57, in load_batch" in str(missing.attributes[semconv.CODE_STACKTRACE])
    assert missing.error == "rank 2 is in load_batch at train.py:57"
    assert waiting.error is None
    assert waiting.links == (LinkTarget(trace_id_of_step(RUN, 0), operation_span_id(view_of(0).nonce, numbers[0])),)
    for bar in bars:
        assert root.start_ns <= bar.start_ns < bar.end_ns <= root.end_ns


def test_all_evidence_is_urgent_and_every_id_is_new() -> None:
    """During a whole incident, all spans are urgent, ids are unique, and parents exist (the sink checks)."""
    world, numbers = stalled(since_s=STALLED_S)
    watching = Reported(world)
    watching.until(50.0)
    numbers[2] = world.ranks[2].enter(EVERYBODY, 50.0)
    watching.until(62.0)
    for rank, number in numbers.items():
        world.ranks[rank].end(number, 62.0)
    watching.until(70.0)
    evidence = [(spans, urgent) for spans, urgent in watching.sink.groups if spans[0].name != "step"]
    assert all(urgent for _, urgent in evidence)
    roots = watching.named("stall: ")
    assert [root.name for root in roots] == [
        "stall: all_reduce (absent)",
        "stall: all_reduce (absent)",
        "stall: all_reduce (absent)",
        "stall: all_reduce (transport)",
        "stall: all_reduce (transport)",
    ]
    assert len({root.trace_id for root in roots}) == 1
    for before, root in itertools.pairwise(roots):
        assert root.links[0] == LinkTarget(before.trace_id, before.span_id)
    last = roots[-1]
    assert last.attributes[semconv.STALL_RESOLVED] is True
    assert last.error is None
    assert round((last.end_ns - last.start_ns) / 1e9) == 57
    assert all(semconv.STALL_RESOLVED not in root.attributes for root in roots[:-1])


def test_failed_end_is_not_called_resolved() -> None:
    """An incident that ends because the operation raised is over, but not resolved, and shows the error."""
    world, numbers = stalled(since_s=STALLED_S)
    watching = Reported(world)
    watching.until(17.0)
    for rank, number in numbers.items():
        world.ranks[rank].end(number, 17.1, How.FAILED, "RuntimeError")
    watching.until(18.0)
    last = watching.named("stall: ")[-1]
    assert last.attributes[semconv.STALL_RESOLVED] is False
    assert last.error is not None
    assert last.error.startswith("all_reduce (sequence 2, default_pg) failed after 12.")


def test_process_that_takes_over_repeats_no_id() -> None:
    """Two processes report the same stall one after the other into one sink, which refuses repeated ids."""
    world, _ = stalled(since_s=STALLED_S)
    first = Reported(world)
    first.until(50.0)
    second = Reported(world, began_s=50.0, anchors=first.anchors)
    second.until(100.0)
    roots = first.named("stall: ")
    assert len({root.trace_id for root in roots}) == 1
    assert len(roots) >= 5


def test_large_group_has_bounded_bars() -> None:
    """Of 200 members, 64 have their own bar, the missing rank first. One bar represents the other 136."""
    everybody = group_of(*range(200), description="default_pg")
    world = FakeWorld(100)
    for rank in range(99):
        world.ranks[rank].enter(everybody, 5.0)
    watching = Reported(world)
    watching.until(17.0)
    (root,) = watching.named("stall: ")
    bars = watching.sink.under(root)
    assert (bars[0].name, bars[-1].name, len(bars)) == ("rank 99: absent", "136 more ranks", 65)
    assert root.attributes[semconv.VERDICT_COVERAGE] == "100/200"


def test_log_event_and_line(caplog: pytest.LogCaptureFixture) -> None:
    """The first verdict and the end each give one OpenTelemetry event in the incident's trace, and one warning."""
    world, numbers = stalled(since_s=STALLED_S)
    watching = Reported(world)
    with caplog.at_level(logging.WARNING, logger="otel_torchdist"):
        watching.until(17.0)
        numbers[2] = world.ranks[2].enter(EVERYBODY, 17.1)
        for rank, number in numbers.items():
            world.ranks[rank].end(number, 17.1)
        watching.until(18.0)
    opened, ended = [data.log_record for data in watching.logs.get_finished_logs()]
    root, last = watching.named("stall: ")
    assert (opened.event_name, ended.event_name) == ("torchdist.stall", "torchdist.stall.resolved")
    assert (opened.trace_id, opened.span_id) == (root.trace_id, root.span_id)
    assert (ended.trace_id, ended.span_id) == (last.trace_id, last.span_id)
    assert opened.body == root.error
    assert opened.severity_text == "ERROR"
    assert ended.severity_text == "INFO"
    assert opened.attributes is not None
    assert opened.attributes[semconv.VERDICT_RANKS] == "2"
    assert opened.attributes[semconv.STALL_TRACE_ID] == f"{root.trace_id:032x}"
    first_line, last_line = [record.getMessage() for record in caplog.records]
    assert first_line == f"stall: {root.error} (run {run_label(RUN)}, trace {root.trace_id:032x})"
    assert last_line.startswith("stall over: all_reduce (sequence 2, default_pg) completed after 12.")


def test_short_timeout_is_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """The line names the group, its timeout, the time needed and the settings. It is no finding."""
    reported = Reported(FakeWorld(1))
    name = dataclasses.replace(EVERYBODY.name, timeout_ms=35_000, at_timeout=AtTimeout.RAISES)
    event = TimeoutShort(RUN, dataclasses.replace(EVERYBODY, name=name), "gloo", 40 * SECOND)
    with caplog.at_level(logging.WARNING, "otel_torchdist.judge.stall"):
        reported.reporter.report([event])
    assert caplog.messages == [
        "the timeout of default_pg is 35 s: gloo may end a stall there before it has been reported and acted on, which "
        "takes 40 s (OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT, and OTEL_PYTHON_TORCHDIST_ON_STALL_GRACE if actions are set)"
        f"; a longer timeout, or a shorter threshold, leaves time for that (run {run_label(RUN)})"
    ]
    assert reported.sink.spans == []
