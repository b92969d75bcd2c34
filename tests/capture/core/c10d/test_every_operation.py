"""Tapes hold the operations that the ranks report to have issued.

For counts by torch's profiler see `tests/jobs/routes`.
"""

from __future__ import annotations

from typing import Any

import pytest

from otel_torchdist.model.kinds import Flag, RunIdState, TapeState
from tests.support.launch.jobs import Job, Jobs
from tests.support.ranks.rank import GATHERS_INTO_TENSOR
from tests.support.tapes.recorded import Recorded


@pytest.fixture(scope="module")
def job(jobs: Jobs) -> Job:
    """Three ranks that issue every operation."""
    return jobs.run("every_operation", 3)


def is_refused(operation: Recorded) -> bool:
    """Return whether this version of gloo refuses the operation."""
    return operation.name in ("all_to_all", "gather_into_tensor") and operation.how == "FAILED"


def facts_of(operation: Recorded) -> dict[str, Any]:
    """Return a recorded operation in the worker's format."""
    signature = operation.signature
    return {
        "name": operation.name,
        "ranks": list(operation.group.ranks),
        "line": operation.line,
        "is_async": operation.is_async,
        "shapes": [list(shape) for shape in signature.shapes],
        "dtypes": list(signature.dtypes),
        "reduce_op": signature.reduce_op,
        "peer": operation.raw.peer,
        "tag": operation.raw.tag,
        "size": operation.raw.message_bytes,
        "tensors": signature.tensors,
    }


def test_each_is_recorded_as_it_was_issued(job: Job) -> None:
    """Each operation is on the tape exactly once, in order, with everything that its caller knows."""
    for done, tape in zip(job.ranks, job.tapes, strict=True):
        recorded = [facts_of(operation) for operation in tape.operations if not is_refused(operation)]
        for facts, expected in zip(recorded, done.lines(), strict=True):
            assert facts == {**facts, **{key: value for key, value in expected.items() if value is not None}}


def test_gather_into_tensor(job: Job) -> None:
    """Torch 2.15's `gather_into_tensor` and `gather_single` are recorded under one name. gloo refuses them."""
    if not GATHERS_INTO_TENSOR:
        pytest.skip("this torch has no gather_into_tensor")
    for tape in job.tapes:
        operation = tape.only("gather_into_tensor")
        assert (operation.raw.peer, operation.raw.message_bytes, operation.failure) == (1, 16, "RuntimeError")
        assert operation.signature.shapes == ((4,),)


def test_each_has_ended(job: Job) -> None:
    """Each operation was waited for, so it ended by the wait, by an earlier poll, or in the call if the call blocks."""
    for tape in job.tapes:
        operations = [operation for operation in tape.operations if not is_refused(operation)]
        ends = {(operation.name == "monitored_barrier", operation.how) for operation in operations}
        assert ends - {(False, "POLL"), (False, "CALLBACK")} == {(True, "CALL"), (False, "WAIT")}
        only_by_wait = [operation for operation in tape.operations if Flag.END_BY_WAIT in operation.raw.flags]
        assert {operation.how for operation in only_by_wait} == {"WAIT"}
        scattered = {operation.name for operation in only_by_wait} - {"send", "recv"}
        assert scattered == {"reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced"}
        assert (tape.lost, tape.status.records_dropped, tape.failure) == (0, 0, "")
        assert tape.status.state is TapeState.FINISHED


def test_times_follow_each_other(job: Job) -> None:
    """No operation returns, is waited for or ends before it is entered, and entries are in order."""
    for tape in job.tapes:
        entered = [operation.raw.entered_ns for operation in tape.operations]
        assert entered == sorted(entered)
        for operation in tape.operations:
            raw = operation.raw
            times = [raw.entered_ns, raw.returned_ns, raw.wait_entered_ns, raw.completed_ns]
            known = [time for time in times if time is not None]
            assert known == sorted(known)
            left_alone = operation.is_async or Flag.POINT_TO_POINT in raw.flags
            assert (raw.returned_ns is not None) == left_alone or is_refused(operation)


def test_sequences_agree_across_ranks(job: Job) -> None:
    """Each group's collectives are counted from 1 without a gap, and a number means the same call on every member."""
    members: dict[str, list[list[tuple[int, str, tuple[tuple[int, ...], ...]]]]] = {}
    for tape in job.tapes:
        channels: dict[str, list[tuple[int, str, tuple[tuple[int, ...], ...]]]] = {}
        for operation in tape.operations:
            if Flag.POINT_TO_POINT not in operation.raw.flags and not is_refused(operation):
                channel = channels.setdefault(operation.group.key, [])
                channel.append((operation.raw.sequence, operation.name, operation.signature.shapes))
        for key, channel in channels.items():
            assert [sequence for sequence, *_ in channel] == list(range(1, len(channel) + 1))
            members.setdefault(key, []).append(channel)
    assert sorted(len(channels) for channels in members.values()) == [2, 3]
    for first, *others in members.values():
        assert all(other == first for other in others)


def test_sends_and_receives_pair_up(job: Job) -> None:
    """Each send has a receive with the same source, destination, tag and number. A receive from any source has none."""
    sent: set[tuple[int, ...]] = set()
    received: set[tuple[int, ...]] = set()
    for here, tape in enumerate(job.tapes):
        for operation in tape.operations:
            raw = operation.raw
            if operation.name == "send":
                sent.add((here, raw.peer, raw.tag, raw.sequence))
            if operation.name == "recv":
                received.add((raw.peer, here, raw.tag, raw.sequence))
    assert len(sent) == 11
    assert sent - received == {(0, 2, 0, 1)}
    assert received - sent == {(-1, 2, 0, 1)}


def test_groups_and_run_agree(job: Job) -> None:
    """All ranks have the same agreed run id and the same two aligned groups, with their creation recorded."""
    [run_id] = {tape.status.run_id for tape in job.tapes}
    assert run_id
    assert [tape.status.run_id_state for tape in job.tapes] == [RunIdState.AGREED] * 3
    for rank, tape in enumerate(job.tapes):
        groups = {operation.group for operation in tape.operations}
        assert all(group.aligned and group.nth == 0 and group.backend == "gloo" for group in groups)
        made = [(rendezvous.name, rendezvous.group.ranks, rendezvous.how) for rendezvous in tape.rendezvous]
        expected = [("init_process_group", (0, 1, 2), "CALL"), ("new_group", (0, 2), "CALL")]
        assert made == (expected[:1] if rank == 1 else expected)
        assert {group.description for group in groups} == ({"default_pg"} if rank == 1 else {"default_pg", "a pair"})


def test_more_tensors_than_are_described(job: Job) -> None:
    """Ten tensors give a signature of eight that is marked as capped."""
    for tape in job.tapes:
        capped = [operation for operation in tape.operations if Flag.SIGNATURE_CAPPED in operation.raw.flags]
        assert [(operation.name, operation.signature.tensors) for operation in capped] == [("all_reduce_coalesced", 10)]


def test_overhead(jobs: Jobs) -> None:
    """The recorded overhead is less than the time of the calls, so the cost of planning is counted once.

    It would be more if planning counted sixteen times, as a sampled call does. The best of several tries counts,
    because a thread may lose its core in a sample.
    """
    tries = jobs.run("overhead", 1).ranks[0].lines()
    assert min(one["overhead_ns"] / one["took_ns"] for one in tries) < 1
    assert all(one["overhead_ns"] > 0 for one in tries)
