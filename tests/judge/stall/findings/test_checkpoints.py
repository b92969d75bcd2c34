"""Findings on checkpoints that could not be saved, and the ranks that they name."""

from __future__ import annotations

from collections.abc import Mapping

from otel_torchdist.judge.stall.findings.checkpoints import MAX_REPORTED, SETTLED_NS, FailedSaves, SaveFailed
from otel_torchdist.model.rank_state.occupations import FailedCheckpoint, RankCheckpoints
from otel_torchdist.model.snapshot import WorldSnapshot
from tests.support.worlds.fake_world import SECOND, START_NS, FakeWorld

SETTLED_S = SETTLED_NS / SECOND


def failed(number: int, error: str = "OSError", path: str = "/ckpt/1", stage: str = "write_data") -> FailedCheckpoint:
    """Build a failed save; a `CheckpointException` is one that the rank only received."""
    is_cause = error != "CheckpointException"
    message = "No space left on device" if is_cause else "OSError: No space left on device"
    return FailedCheckpoint(number, "save", path, stage, error, message, 7, START_NS, is_cause)


def world_of(failures: Mapping[int, tuple[FailedCheckpoint, ...]], now_s: float = 10.0) -> WorldSnapshot:
    """Build three ranks, some with failed saves."""
    world = FakeWorld(3)
    for rank, of_rank in failures.items():
        world.ranks[rank].checkpoints = RankCheckpoints(failed=of_rank)
    return world.snapshot(now_s)


def found_in(failures: Mapping[int, tuple[FailedCheckpoint, ...]]) -> list[SaveFailed]:
    """Return the findings after the delay for other ranks."""
    finder = FailedSaves()
    assert finder.find(world_of(failures)) == []
    return finder.find(world_of(failures, 10.0 + SETTLED_S))


def test_the_rank_that_failed_is_named() -> None:
    """Three ranks get an exception: the rank that raised it is named."""
    received = failed(5, "CheckpointException", stage="")
    [found] = found_in({0: (received,), 1: (failed(6),), 2: (received,)})
    assert (found.ranks, found.notified) == ((1,), (0, 2))
    assert found.text == (
        "checkpoint save /ckpt/1 in step 7 has failed on rank 1, in write_data: OSError: No space left on device; "
        "ranks 0,2 received it"
    )


def test_the_rank_is_not_seen() -> None:
    """If the rank that failed does not report, no rank is blamed, but the reason is stated."""
    [found] = found_in({0: (failed(5, "CheckpointException", stage=""),)})
    assert not found.are_known
    assert found.text == (
        "checkpoint save /ckpt/1 in step 7 has failed; rank 0 received an exception: CheckpointException: "
        "OSError: No space left on device"
    )


def test_each_is_found_once() -> None:
    """Two checkpoints give two findings. The same failures are not reported again, but a new attempt is."""
    failures = {1: (failed(5), failed(9, path="/ckpt/2"))}
    finder = FailedSaves()
    finder.find(world_of(failures))
    assert [one.checkpoint for one in finder.find(world_of(failures, 20.0))] == ["/ckpt/1", "/ckpt/2"]
    assert finder.find(world_of(failures, 30.0)) == []
    again = {1: (*failures[1], failed(12))}
    assert finder.find(world_of(again, 40.0)) == []
    assert [one.checkpoint for one in finder.find(world_of(again, 40.0 + SETTLED_S))] == ["/ckpt/1"]


def test_later_of_two_settles_first() -> None:
    """Reporting one checkpoint does not hide another of the same rank that is still pending."""
    finder = FailedSaves()
    first = {1: (failed(9, path="/ckpt/2"),)}
    finder.find(world_of(first, 10.0))
    both = {1: (failed(5, path="/ckpt/1"), failed(9, path="/ckpt/2"))}
    assert [one.checkpoint for one in finder.find(world_of(both, 10.0 + SETTLED_S))] == ["/ckpt/2"]
    assert [one.checkpoint for one in finder.find(world_of(both, 10.0 + 2 * SETTLED_S))] == ["/ckpt/1"]


def test_bounded() -> None:
    """A storage that stays full does not fill the log."""
    finder, found = FailedSaves(), 0
    for nth in range(MAX_REPORTED + 5):
        world = world_of({1: (failed(nth + 1),)}, float(nth))
        found += len(finder.find(world, is_last=True))
    assert found == MAX_REPORTED


def test_nothing() -> None:
    """A healthy job has no finding."""
    assert found_in({}) == []
