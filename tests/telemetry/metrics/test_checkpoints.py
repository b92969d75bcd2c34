"""Counts of checkpoints, and how old the last one is."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_torchdist.model.kinds import ActivityKind, How
from otel_torchdist.tape.layout import ActivityWord
from otel_torchdist.telemetry.metrics.counts import MAX_INTERVALS, WHOLE, CheckpointCounts, CheckpointMetrics, Saves
from otel_torchdist.telemetry.semconv import OTHER
from tests.support.tapes.fake_tape import SECOND, ClockedTape

SAVE, STAGE = ActivityKind.CHECKPOINT_SAVE, ActivityKind.CHECKPOINT_STAGE


@pytest.fixture
def tape(memory: Path) -> ClockedTape:
    """A tape without records."""
    return ClockedTape(memory)


def save(tape: ClockedTape, seconds: float, how: How = How.CALL, stage: str = "write_data") -> None:
    """Save 1,000 bytes in two files."""
    outer = tape.begin_activity("/ckpt", SAVE)
    inner = tape.begin_activity(stage, STAGE, outer)
    tape.pass_s(seconds)
    for number in (inner, outer):
        tape.writer.mark(number, ActivityWord.BYTES, 1_000, How.CALL)
        tape.writer.mark(number, ActivityWord.FILES, 2, How.CALL)
        tape.end_activity(number, how)


def test_by_operation_and_stage(tape: ClockedTape) -> None:
    """Time, bytes, files and failures, of stages and of the whole; nothing was written where it failed."""
    metrics = CheckpointMetrics(tape.reader.names)
    for how in (How.CALL, How.CALL, How.FAILED, How.ABANDONED):
        save(tape, 2.0, how)
        metrics.consume(tape.reader.poll())
    of = {"ended": 2, "failed": 1, "duration_ns": 8 * SECOND, "message_bytes": 2_000, "files": 4}
    counts = {(one.operation, one.stage): one for one in metrics.counts}
    assert set(counts) == {("save", "write_data"), ("save", WHOLE)}
    assert counts["save", "write_data"] == CheckpointCounts("save", "write_data", **of)
    assert abs(counts["save", WHOLE].duration_ns - 8 * SECOND) < SECOND


def test_bounded(tape: ClockedTape) -> None:
    """Stages that no torch has share a label, as do operations that are not known."""
    metrics = CheckpointMetrics(tape.reader.names)
    for nth in range(5):
        save(tape, 1.0, stage=f"own stage {nth}")
        tape.end_activity(tape.begin_activity("lost", STAGE, parent=10_000 + nth))
    metrics.consume(tape.reader.poll())
    assert {(one.operation, one.stage) for one in metrics.counts} == {("save", WHOLE), ("save", OTHER), (OTHER, OTHER)}


def test_resumed(tape: ClockedTape) -> None:
    """The next reader continues within a save that the one before has seen begin."""
    before = CheckpointMetrics(tape.reader.names)
    save(tape, 1.0)
    outer = tape.begin_activity("/ckpt", SAVE)
    inner = tape.begin_activity("write_data", STAGE, outer)
    before.consume(tape.reader.poll())
    after = CheckpointMetrics(tape.reader.names)
    after.resume(before.counts, before.saves, tape.reader.open_activities())
    tape.pass_s(3)
    tape.end_activity(inner)
    tape.end_activity(outer)
    after.consume(tape.reader.poll())
    counts = {(one.operation, one.stage): one.duration_ns for one in after.counts}
    assert counts["save", "write_data"] == 4 * SECOND
    assert after.saves.last_ns == tape.now_ns


def test_age(tape: ClockedTape) -> None:
    """Saves that fail, loads and `async_save` leave the age as it is."""
    metrics = CheckpointMetrics(tape.reader.names)
    save(tape, 1.0)
    ended_ns = tape.now_ns
    save(tape, 100.0, How.FAILED)
    for kind in (ActivityKind.CHECKPOINT_LOAD, ActivityKind.CHECKPOINT_ASYNC_SAVE):
        tape.end_activity(tape.begin_activity("x", kind))
    metrics.consume(tape.reader.poll())
    assert metrics.saves == Saves(ended_ns)


def test_intervals() -> None:
    """Files in quick succession are one checkpoint; of the rest the newest intervals are kept."""
    saves = Saves()
    for nth in range(20):
        saves = saves.after(nth * 3600 * SECOND).after(nth * 3600 * SECOND + 5 * SECOND)
    assert saves.intervals_ns == (3595 * SECOND,) * MAX_INTERVALS
