"""The last records of a rank: records written just before its end, and the order of ends."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from otel_torchdist.judge.verdict.deaths import has_raised, interrupted_operation
from otel_torchdist.judge.world.following.channels import LENGTH
from otel_torchdist.judge.world.following.follower import TapeFollower
from otel_torchdist.model.kinds import Flag, How, TapeState
from otel_torchdist.model.rank_state.lives import Death
from otel_torchdist.node.job.runs.lives import write_death
from otel_torchdist.node.processes.death_watch import DeathWatch
from otel_torchdist.node.processes.endings import RecordedDeaths
from tests.support.tapes.fake_tape import ClockedTape


def be_thrown_out(tape: ClockedTape, follower: TapeFollower) -> None:
    """Poll a tape while its rank is in an operation, which then fails and ends the rank."""
    number = tape.enter()
    follower.observe(tape.reader.poll())
    tape.end(number, How.FAILED, "RuntimeError")
    tape.writer.finish(TapeState.FAILED, tape.writer.names.intern("RuntimeError"))
    tape.writer.close()


def test_thrown_out_after_its_tape_was_read(tmp_path: Path) -> None:
    """A failure recorded after the last poll belongs to the open operation: the rank did not raise by itself."""
    tape, watch = ClockedTape(tmp_path), DeathWatch()
    try:
        follower = TapeFollower(tape.reader, watch)
        be_thrown_out(tape, follower)
        first = follower.view(time.monotonic_ns())
        assert first is not None and first.alive and not first.is_dead
        follower.observe(tape.reader.poll())
        second = follower.view(time.monotonic_ns())
        assert second is not None and second.is_dead
        assert interrupted_operation(second) is not None and not has_raised(second)
    finally:
        watch.stop()


def test_seen_to_die_after_its_tape_was_read(tmp_path: Path) -> None:
    """The death is known immediately, but is shown only with the failure recorded after the last poll.

    An agent delayed between poll and check once reported such a rank as the first to die.
    """
    tape, deaths = ClockedTape(tmp_path), RecordedDeaths()
    deaths.follow(tape.reader.identity.nonce, tape.writer.path)
    follower = TapeFollower(tape.reader, deaths)
    be_thrown_out(tape, follower)
    write_death(tape.writer.path, Death(time.monotonic_ns(), status=int(signal.SIGTERM)))
    first = follower.view(time.monotonic_ns())
    assert first is not None and first.alive and first.death is None
    later = TapeFollower(tape.reader, deaths).view(time.monotonic_ns())
    assert later is not None and later.is_dead  # it was dead before the last records were read
    follower.observe(tape.reader.poll())
    second = follower.view(time.monotonic_ns())
    assert second is not None and second.is_dead and second.death is not None
    assert interrupted_operation(second) is not None and not has_raised(second)


def test_operations_that_end_out_of_order(tmp_path: Path) -> None:
    """The last operation is the last one that ended, wherever its record is on the tape."""
    tape = ClockedTape(tmp_path)
    follower = TapeFollower(tape.reader)
    first, second = tape.enter(), tape.enter()
    tape.pass_s(1)
    tape.end(second)
    tape.pass_s(1)
    tape.end(first)
    follower.observe(tape.reader.poll())
    view = follower.view(tape.now_ns)
    assert view is not None and view.last is not None
    assert view.last.record.number == first


@pytest.mark.parametrize(("flags", "arrivals"), [(Flag.ASYNC, 1), (Flag.ASYNC | Flag.ON_DEVICE, 0)])
def test_arrivals_in_calls_that_a_device_runs(tmp_path: Path, flags: Flag, arrivals: int) -> None:
    """The time at which a rank enqueues an operation is not the arrival of its device."""
    tape = ClockedTape(tmp_path)
    follower = TapeFollower(tape.reader)
    for _ in range(LENGTH + 1):
        tape.operation(flags=flags)
    follower.observe(tape.reader.poll())
    view = follower.view(tape.now_ns)
    assert view is not None
    assert [len(windows) for windows in view.windows.values()] == [1]
    assert sum(map(len, view.arrivals.values())) == arrivals
