"""What is known of the checkpoints of one rank: where it is, what is usual, and what has failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_torchdist.model.kinds import ActivityKind, How
from otel_torchdist.model.rank_state.occupations import (
    NO_CHECKPOINTS,
    CheckpointView,
    FailedCheckpoint,
    RankCheckpoints,
)
from otel_torchdist.tape.layout import ActivityWord
from otel_torchdist.tape.records.checkpoint_log import MAX_FAILED, CheckpointLog
from tests.support.tapes.fake_tape import SECOND, ClockedTape

SAVE, STAGE = ActivityKind.CHECKPOINT_SAVE, ActivityKind.CHECKPOINT_STAGE


class Log:
    """A tape, and what is known of it."""

    def __init__(self, directory: Path) -> None:
        self.tape = ClockedTape(directory)
        self.log = CheckpointLog(self.tape.reader.names)

    def shown(self) -> RankCheckpoints:
        """What is known now."""
        batch = self.tape.reader.poll()
        self.log.observe(batch.activities_entered, batch.activities_ended)
        return self.log.snapshot(self.tape.reader.open_activities())

    def save(
        self, seconds: float, *, error: str = "", raised: str = "CheckpointException", path: str = "/ckpt"
    ) -> None:
        """Save, with an error in the stage that writes."""
        tape = self.tape
        how = How.FAILED if error else How.CALL
        outer = tape.begin_activity(path, SAVE)
        meeting = tape.begin_activity("write", STAGE, outer)
        stage = tape.begin_activity("write_data", STAGE, meeting)
        tape.pass_s(seconds)
        if error:
            text = tape.writer.names.intern(f"message of {error}")
            tape.writer.mark(stage, ActivityWord.EXPLANATION, text, How.CALL)
        tape.end_activity(stage, how, error)
        tape.pass_s(10 * seconds)
        tape.end_activity(meeting, how, raised if error else "")
        tape.end_activity(outer, how, raised if error else "")


@pytest.fixture
def one(memory: Path) -> Log:
    """A tape without records."""
    return Log(memory)


def test_nothing(one: Log) -> None:
    """A rank without checkpoints has nothing to show, whatever its optimizers do."""
    one.tape.begin_activity("Adam")
    assert one.shown() is NO_CHECKPOINTS


def test_where_it_is(one: Log) -> None:
    """The innermost stage, the stage in which others wait, and what is to be written; by thread."""
    outer = one.tape.begin_activity("/ckpt/7", SAVE)
    assert one.shown().open == (CheckpointView("save", "/ckpt/7", 7, "", "", one.tape.now_ns),)
    meeting = one.tape.begin_activity("write", STAGE, outer)
    one.tape.pass_s(1)
    one.tape.begin_activity("write_data", STAGE, meeting, message_bytes=410)
    other = one.tape.begin_activity("x.pt", ActivityKind.TORCH_LOAD, thread=8)
    shown = one.shown()
    since_ns = one.tape.now_ns
    assert shown.of_thread(7) == CheckpointView("save", "/ckpt/7", 7, "write", "write_data", since_ns, 410)
    assert shown.of_thread(8) == CheckpointView("torch.load", "x.pt", 8, "", "", since_ns)
    one.tape.end_activity(other)
    assert one.shown().of_thread(8) is None


def test_what_is_usual(one: Log) -> None:
    """The median of a stage's own work; of what includes the wait for others, nothing."""
    for seconds in (1.0, 2.0, 9.0):
        one.save(seconds)
    outer = one.tape.begin_activity("/ckpt/7", SAVE)
    assert one.shown().open[0].usual_ns == 0
    meeting = one.tape.begin_activity("write", STAGE, outer)
    assert one.shown().open[0].usual_ns == 0
    one.tape.begin_activity("write_data", STAGE, meeting)
    assert one.shown().open[0].usual_ns == 2 * SECOND


def test_a_failure_earns_no_patience(one: Log) -> None:
    """A stage that ended with an exception says nothing of how long it usually takes."""
    one.save(5.0, error="OSError")
    outer = one.tape.begin_activity("/ckpt/7", SAVE)
    one.tape.begin_activity("write_data", STAGE, outer)
    assert one.shown().open[0].usual_ns == 0


@pytest.mark.parametrize("polls_between", [False, True])
def test_what_has_failed(one: Log, polls_between: bool) -> None:
    """The exception of the innermost stage, not the one that all ranks get."""
    if polls_between:
        one.shown()
    one.save(1.0, error="OSError")
    [failed] = one.shown().failed
    assert (failed.stage, failed.error, failed.message) == ("write_data", "OSError", "message of OSError")
    assert (failed.operation, failed.checkpoint, failed.is_cause) == ("save", "/ckpt", True)


def test_told_of_another_rank(one: Log) -> None:
    """A rank whose own stages went well only received it."""
    outer = one.tape.begin_activity("/ckpt", SAVE)
    stage = one.tape.begin_activity("write_data", STAGE, outer)
    one.tape.end_activity(stage)
    one.tape.end_activity(outer, How.FAILED, "CheckpointException")
    [failed] = one.shown().failed
    assert (failed.stage, failed.error, failed.is_cause) == ("", "CheckpointException", False)


def test_told_in_a_stage(one: Log) -> None:
    """A stage that only received another rank's error is not the stage that failed."""
    outer = one.tape.begin_activity("/ckpt", SAVE)
    meeting = one.tape.begin_activity("write", STAGE, outer)
    one.tape.end_activity(meeting, How.FAILED, "CheckpointException")
    one.tape.end_activity(outer, How.FAILED, "CheckpointException")
    [failed] = one.shown().failed
    assert (failed.stage, failed.number, failed.is_cause) == ("", outer, False)


@pytest.mark.parametrize("kind", [ActivityKind.CHECKPOINT_LOAD, ActivityKind.TORCH_LOAD])
def test_loads(one: Log, kind: ActivityKind) -> None:
    """To look for a checkpoint that is not there is no failure to report."""
    one.tape.end_activity(one.tape.begin_activity("/ckpt", kind), How.FAILED, "FileNotFoundError")
    assert one.shown() is NO_CHECKPOINTS


def test_interrupted(one: Log) -> None:
    """What Ctrl-C has ended is no failure."""
    one.tape.end_activity(one.tape.begin_activity("/ckpt", SAVE), How.ABANDONED)
    assert one.shown() is NO_CHECKPOINTS


def test_bounded(one: Log) -> None:
    """Only the newest failures are kept."""
    for nth in range(MAX_FAILED + 3):
        one.save(0.1, error="OSError", path=f"/ckpt/{nth}")
    failed: tuple[FailedCheckpoint, ...] = one.shown().failed
    assert [one.checkpoint for one in failed] == [f"/ckpt/{nth}" for nth in range(3, MAX_FAILED + 3)]
