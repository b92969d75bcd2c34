"""Every call is one span with the attributes that it had by torch's own account, within the span of its step."""

from __future__ import annotations

from collections import Counter
from typing import Final

from otel_torchdist.telemetry import semconv
from tests.figures.running import Run
from tests.figures.witness import DEFAULT, TEAM, Call, Witness
from tests.support.receivers.otlp_receiver import ReceivedSpan
from tests.support.registry import assert_belongs, assert_defined

CREATIONS: Final = {DEFAULT: "init_process_group", TEAM: "new_group"}
CLOCKS_NS: Final = 5_000_000
"""Largest difference between two readings of the wall clock by the monotonic one."""
LONG_S: Final = 0.001
"""Data waits and backward passes have a span from then on."""


def of_rank(run: Run, witness: Witness) -> list[ReceivedSpan]:
    """Return the spans of a rank."""
    return [span for span in run.spans if span.attributes[semconv.RANK] == witness.rank]


def operations(run: Run, witness: Witness) -> list[ReceivedSpan]:
    """Return the spans of operations of a rank, without the creation of groups, in order."""
    found = [span for span in of_rank(run, witness) if semconv.OPERATION in span.attributes]
    return sorted((span for span in found if span.name not in CREATIONS.values()), key=lambda span: span.start_ns)


def numbered(spans: list[ReceivedSpan]) -> dict[tuple[str, int], ReceivedSpan]:
    """Return the collectives among spans by group and sequence."""
    found: dict[tuple[str, int], ReceivedSpan] = {}
    for span in spans:
        if span.name not in ("send", "recv"):
            key = span.attributes[semconv.GROUP_DESCRIPTION], span.attributes[semconv.SEQUENCE]
            assert key not in found, f"twice: {key}"
            found[key] = span
    return found


def test_ids(run: Run) -> None:
    """No span id is exported twice, every parent is exported in the same trace, and only steps have none."""
    by_id = {span.span_id: span for span in run.spans}
    assert len(by_id) == len(run.spans)
    for span in run.spans:
        assert bool(span.parent_id) is not span.name.startswith("step (rank "), span.name
        if span.parent_id:
            assert by_id[span.parent_id].trace_id == span.trace_id
            assert by_id[span.parent_id].attributes[semconv.RANK] == span.attributes[semconv.RANK]


def test_times(run: Run) -> None:
    """Each span takes time and ends within its step's span, where it also begins unless its step began earlier."""
    by_id = {span.span_id: span for span in run.spans}
    for span in run.spans:
        assert span.end_ns > span.start_ns, span.name
        assert span.error is None
        if span.parent_id:
            parent = by_id[span.parent_id]
            assert span.end_ns <= parent.end_ns, (span.name, parent.name)
            is_of_step = span.attributes[semconv.STEP] == parent.attributes.get(semconv.STEP)
            assert span.start_ns >= parent.start_ns or not is_of_step, (span.name, parent.name)


def test_calls(run: Run) -> None:
    """Each call of a rank has one span, the creation of each group as well."""
    for witness in run.witnesses:
        spans = operations(run, witness)
        found = Counter((span.attributes[semconv.GROUP_DESCRIPTION], span.name) for span in spans)
        assert found == witness.counts
        created = [span for span in of_rank(run, witness) if span.name in CREATIONS.values()]
        assert sorted((span.attributes[semconv.GROUP_DESCRIPTION], span.name) for span in created) == [
            *CREATIONS.items()
        ]


def test_attributes(run: Run) -> None:
    """Name, bytes, step, root and size of the group are those of the call at that place in its group."""
    for witness in run.witnesses:
        spans = numbered(operations(run, witness))
        calls = {(call.group, call.sequence): call for call in witness.calls if call.sequence}
        assert spans.keys() == calls.keys()
        for place, call in calls.items():
            assert _described(spans[place]) == _expected(witness, call), place


def test_moments(run: Run) -> None:
    """A call is entered before gloo has it, and ends after that."""
    for witness in run.witnesses:
        spans = numbered(operations(run, witness))
        for call in witness.calls:
            if call.sequence:
                span = spans[call.group, call.sequence]
                assert span.start_ns - CLOCKS_NS <= call.created_ns <= span.end_ns + CLOCKS_NS, call


def test_messages(run: Run) -> None:
    """The message is sent once and received once, with the bytes of the sender and each other's rank."""
    [sent] = [span for span in run.spans if span.name == "send"]
    [received] = [span for span in run.spans if span.name == "recv"]
    size = run.witnesses[0].sizes[DEFAULT, "send"]
    assert (sent.attributes[semconv.MESSAGE_SIZE], received.attributes[semconv.MESSAGE_SIZE]) == (size, 0)
    assert (sent.attributes[semconv.RANK], sent.attributes[semconv.PEER]) == (0, 1)
    assert (received.attributes[semconv.RANK], received.attributes[semconv.PEER]) == (1, 0)


def test_steps(run: Run) -> None:
    """Each step of a rank is one span, and what comes after the last one is another; both ranks are in its trace."""
    traces: dict[int, set[int]] = {}
    for witness in run.witnesses:
        steps = [span for span in of_rank(run, witness) if span.name == f"step (rank {witness.rank})"]
        assert sorted(span.attributes[semconv.STEP] for span in steps) == list(range(witness.steps + 1))
        for span in steps:
            traces.setdefault(span.attributes[semconv.STEP], set()).add(span.trace_id)
        ended = sorted(steps, key=lambda span: span.start_ns)
        for number, (span, (before_ns, after_ns)) in enumerate(zip(ended, witness.report["ended"], strict=False)):
            offset_ns = witness.report["clock_offset_ns"]
            assert before_ns - CLOCKS_NS <= span.end_ns - offset_ns <= after_ns + CLOCKS_NS, number
    assert {len(of) for of in traces.values()} == {1}


def test_parts_of_steps(run: Run) -> None:
    """Each optimizer's step has a span; data waits and backward passes have some, of a millisecond or longer."""
    for witness in run.witnesses:
        named = Counter(span.name for span in of_rank(run, witness))
        counts, seconds = witness.report["counts"], witness.report["seconds"]
        assert named["optimizer step"] == counts["optimizer"]
        for name, part in (("data wait", "data"), ("backward", "backward")):
            assert named[name] <= counts[part]
            spans = [span for span in of_rank(run, witness) if span.name == name]
            lasted_s = [(span.end_ns - span.start_ns) / 1e9 for span in spans]
            assert all(lasted >= LONG_S for lasted in lasted_s)
            assert sum(lasted_s) <= seconds[part]


def test_checkpoints(run: Run) -> None:
    """Each save and load of the program is one span with its bytes, its stages lie within it; there are no others."""
    for witness in run.witnesses:
        spans = [span for span in of_rank(run, witness) if semconv.CHECKPOINT_OPERATION in span.attributes]
        stages = [span for span in of_rank(run, witness) if semconv.CHECKPOINT_STAGE in span.attributes]
        saved = witness.report["saved"]
        assert sorted(span.name for span in spans) == sorted(f"checkpoint {operation}" for operation in saved)
        for span in spans:
            operation = span.attributes[semconv.CHECKPOINT_OPERATION]
            assert span.attributes.get(semconv.CHECKPOINT_SIZE, 0) == saved[operation]["bytes"]
            assert (span.end_ns - span.start_ns) / 1e9 <= witness.seconds(operation)
        around = {span.span_id for span in (*spans, *stages)}
        assert bool(stages) is run.saves
        assert all(stage.parent_id in around for stage in stages)


def test_no_others(run: Run) -> None:
    """There are no spans of anything else: no incident, no finding, no remote call."""
    expected = {*CREATIONS.values(), "optimizer step", "data wait", "backward"}
    for witness in run.witnesses:
        expected |= {f"step (rank {witness.rank})", *(operation for _, operation in witness.counts)}
    rest = [span for span in run.spans if span.name not in expected]
    of_checkpoints = (semconv.CHECKPOINT_OPERATION, semconv.CHECKPOINT_STAGE)
    assert [span.name for span in rest if not any(name in span.attributes for name in of_checkpoints)] == []


def test_registered(run: Run) -> None:
    """Each span has the attributes that the registry in docs/semconv requires of its kind, and no others."""
    kinds = {"optimizer step": "optimizer_step", "data wait": "data_wait", "backward": "backward"}
    for span in run.spans:
        kind = kinds.get(span.name, "operation")
        if span.name.startswith("step (rank "):
            kind = "step"
        elif semconv.CHECKPOINT_OPERATION in span.attributes or semconv.CHECKPOINT_STAGE in span.attributes:
            kind = "checkpoint"
        assert_defined(span.attributes)
        assert_belongs(f"span.torchdist.{kind}", span.attributes)


def _described(span: ReceivedSpan) -> tuple[object, ...]:
    attributes = span.attributes
    names = (semconv.MESSAGE_SIZE, semconv.STEP, semconv.GROUP_SIZE, semconv.PEER)
    return (span.name, *(attributes.get(name) for name in names))


def _expected(witness: Witness, call: Call) -> tuple[object, ...]:
    return call.operation, call.size, call.step, 2, call.root
