"""Spans of checkpoints: parents before children and in one trace, whatever ends when."""

from __future__ import annotations

from pathlib import Path

from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler

from otel_torchdist.model.kinds import ActivityKind, RunIdState
from otel_torchdist.telemetry.spans.activities import MAX_HELD
from otel_torchdist.telemetry.spans.sampling import StepSampler
from otel_torchdist.telemetry.spans.steps import RankSpans
from tests.support.receivers.memory_sink import MemorySink
from tests.support.tapes.fake_tape import RUN_ID, ClockedTape

SAVE, STAGE = ActivityKind.CHECKPOINT_SAVE, ActivityKind.CHECKPOINT_STAGE


class Spanned:
    """A tape, and its spans."""

    def __init__(self, directory: Path, sampler: Sampler = ALWAYS_ON) -> None:
        self.tape = ClockedTape(directory)
        self.tape.writer.set_run_id(RUN_ID, RunIdState.AGREED)
        self.sink = MemorySink()
        self.spans = self.new_spans(sampler)

    def new_spans(self, sampler: Sampler = ALWAYS_ON) -> RankSpans:
        """A reader that begins anew."""
        return RankSpans(self.tape.reader, self.sink, StepSampler(sampler, 1_000_000, 0, 1))

    def read(self) -> None:
        """Read what is new."""
        self.spans.consume(self.tape.reader.poll(), self.tape.reader.status(), self.tape.now_ns)

    def paths(self) -> list[str]:
        """What was exported without anchors, as paths of names."""
        by_id = {span.span_id: span for span in self.sink.spans}
        found: list[str] = []
        for span in self.sink.spans:
            names, parent = [span.name], by_id.get(span.parent_id or 0)
            while parent is not None and parent.parent_id is not None:
                names.insert(0, parent.name)
                parent = by_id.get(parent.parent_id)
            if span.parent_id is not None:
                found.append("/".join(names))
        return found


def test_across_steps(memory: Path) -> None:
    """A save beside the training lasts for several steps: all of it is exported with the step in which it ends."""
    one = Spanned(memory)
    outer = one.tape.begin_activity("/ckpt", SAVE)
    for stage in ("plan", "write"):
        inner = one.tape.begin_activity(stage, STAGE, outer)
        for _ in range(3):
            one.tape.operation()
            one.tape.end_step()
        one.tape.end_activity(inner)
        one.read()
    assert [path for path in one.paths() if "checkpoint" in path or path in ("plan", "write")] == []
    one.tape.end_activity(outer)
    one.tape.end_step()
    one.read()
    assert one.paths()[-3:] == ["checkpoint save", "checkpoint save/plan", "checkpoint save/write"]


def test_read_on_by_another(memory: Path) -> None:
    """The next reader exports stages that had ended before, with the save that ends later; none comes twice."""
    one = Spanned(memory)
    outer = one.tape.begin_activity("/ckpt", SAVE)
    meeting = one.tape.begin_activity("write", STAGE, outer)
    one.tape.end_activity(one.tape.begin_activity("write_data", STAGE, meeting))
    one.tape.end_activity(meeting)
    one.tape.end_step()
    one.read()
    state = one.spans.state
    assert state is not None
    past = one.tape.reader.another().read_before(one.tape.reader.cursor)
    one.spans = one.new_spans()
    one.spans.resume(state, [*past.ended, *past.activities_ended])
    one.tape.end_activity(outer)
    one.tape.end_step()
    one.read()
    assert one.paths() == ["checkpoint save", "checkpoint save/write", "checkpoint save/write/write_data"]


def test_left_open(memory: Path) -> None:
    """A process that ends within a stage leaves spans that say so, nested as ever."""
    one = Spanned(memory)
    outer = one.tape.begin_activity("/ckpt", SAVE)
    one.tape.end_activity(one.tape.begin_activity("plan", STAGE, outer))
    one.tape.begin_activity("write", STAGE, outer)
    one.read()
    one.spans.close(one.tape.now_ns)
    assert one.paths() == ["checkpoint save", "checkpoint save/plan", "checkpoint save/write"]
    assert [span.error for span in one.sink.spans if span.name == "write"] == [
        "write was still in progress when the process was gone"
    ]


def test_lost_parents(memory: Path) -> None:
    """Stages whose save the reader has lost do not pile up, and are exported in the end."""
    one = Spanned(memory)
    lost = one.tape.begin_activity("/ckpt", SAVE)
    for nth in range(MAX_HELD + 10):
        one.tape.end_activity(one.tape.begin_activity("stage", STAGE, lost + 1 if nth else 10**9))
        one.read()
    one.spans.close(one.tape.now_ns)
    assert len(one.paths()) == MAX_HELD + 11


def test_not_sampled(memory: Path) -> None:
    """Stages of a step that is not exported are not either, also not with a later step that is."""
    one = Spanned(memory, ALWAYS_OFF)
    for step in range(4):
        if step == 3:
            assert one.sink.spans == []
            one.spans.keep(step)
        outer = one.tape.begin_activity("/ckpt", SAVE)
        one.tape.end_activity(one.tape.begin_activity("plan", STAGE, outer))
        one.tape.end_activity(outer)
        one.tape.end_step()
        one.read()
    assert one.paths() == ["checkpoint save", "checkpoint save/plan"]
