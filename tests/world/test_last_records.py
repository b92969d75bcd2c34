"""A rank that ends between a poll of its tape and the check: its last records count."""

from __future__ import annotations

import time
from pathlib import Path

from otel_torchdist.processes.death_watch import DeathWatch
from otel_torchdist.tape.layout import How, TapeState
from otel_torchdist.verdict.first_death import has_raised, interrupted_operation
from otel_torchdist.world.following.follower import TapeFollower
from tests.support.tapes.fake_tape import ClockedTape


def test_thrown_out_after_its_tape_was_read(tmp_path: Path) -> None:
    """A failure recorded after the last poll ended an open operation: that is not an exception of the rank's own."""
    tape, watch = ClockedTape(tmp_path), DeathWatch()
    try:
        follower = TapeFollower(tape.reader, watch)
        number = tape.enter()
        follower.observe(tape.reader.poll())
        tape.end(number, How.FAILED, "RuntimeError")
        tape.writer.finish(TapeState.FAILED, tape.writer.names.intern("RuntimeError"))
        tape.writer.close()
        first = follower.view(time.monotonic_ns())
        assert first is not None and first.alive and not first.is_dead
        follower.observe(tape.reader.poll())
        second = follower.view(time.monotonic_ns())
        assert second is not None and second.is_dead
        assert interrupted_operation(second) is not None and not has_raised(second)
    finally:
        watch.stop()
