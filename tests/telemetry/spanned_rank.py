"""One rank, and the spans that are built from its tape."""

from __future__ import annotations

from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler

from otel_torchdist.model.reports.incident import LinkTarget
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan
from otel_torchdist.telemetry.spans.sampling import StepSampler
from otel_torchdist.telemetry.spans.steps import RankSpans
from tests.support.receivers.memory_sink import MemorySink
from tests.support.tapes.fake_tape import ClockedTape


class Rank:
    """One rank: a tape, its spans, and the sink that gets them."""

    def __init__(self, tape: ClockedTape, sampler: Sampler = ALWAYS_ON, links: tuple[LinkTarget, ...] = ()) -> None:
        self.tape = tape
        self.sink = MemorySink()
        identity = tape.reader.identity
        step_sampler = StepSampler(sampler, 100_000, identity.rank, identity.world_size)
        self.spans = RankSpans(tape.reader, self.sink, step_sampler, links)

    def poll(self) -> None:
        """One pass of a reader."""
        self.spans.consume(self.tape.reader.poll(), self.tape.status(), self.tape.now_ns)

    def end_step(self) -> list[FinishedSpan]:
        """End the step and read it; returns the spans of all operations and activities so far."""
        self.tape.end_step()
        self.poll()
        return self.sink.operations

    def close(self) -> None:
        """End the tape."""
        self.poll()
        self.spans.close(self.tape.now_ns)


def group_key(rank: Rank) -> str:
    """The key of the group in which it works."""
    group = rank.tape.reader.names.group(rank.tape.group)
    assert group is not None
    return group.key
