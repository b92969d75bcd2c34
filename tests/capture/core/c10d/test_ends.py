"""The end of an operation on gloo: the earliest of its wait, `wait_tensor` and the poll."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from otel_torchdist.capture.core.c10d.completion import Works
from otel_torchdist.capture.core.torch_api import Patches
from otel_torchdist.model.kinds import Blame, Flag
from tests.support.launch.jobs import Job, Jobs
from tests.support.native.both_kernels import NATIVE_LATER
from tests.support.tapes.recorded import Recorded


@pytest.fixture(scope="module")
def job(jobs: Jobs) -> Job:
    """Two ranks that end operations in every way."""
    return jobs.run("ends", 2)


def of_length(job: Job, length: int) -> list[Recorded]:
    """Return the operations of both ranks whose tensor has this length, which identifies the case."""
    return [one for tape in job.tapes for one in tape.operations if one.signature.shapes[:1] == ((length,),)]


def hows(job: Job, length: int) -> list[str]:
    """Return the kinds of end of these operations."""
    return [operation.how for operation in of_length(job, length)]


def test_posted_and_never_waited_for(job: Job) -> None:
    """A receive that is never waited for stays open, and its record is marked as no evidence of a stall."""
    for operation in of_length(job, 11):
        assert operation.how == "open"
        assert Flag.END_BY_WAIT in operation.raw.flags
        assert not operation.raw.is_blocking


def test_dropped(job: Job) -> None:
    """A receive whose Work is dropped is abandoned, and is not confused with the next receive."""
    assert hows(job, 12) == ["ABANDONED"] * 2
    assert hows(job, 15) == hows(job, 16) == ["WAIT"] * 4


@pytest.mark.parametrize("length", [13, 14, 27, 41])
def test_polled(job: Job, length: int) -> None:
    """Without a wait, the poll finds the end: with the Work kept, dropped or only in C++, or without a Python frame."""
    operations = of_length(job, length)
    assert [operation.how for operation in operations] == ["POLL"] * 2
    for operation in operations:
        took_ns = (operation.raw.completed_ns or 0) - operation.raw.entered_ns
        assert took_ns < 5e9


def test_waited_for_twice(job: Job) -> None:
    """A second wait does not change the record."""
    assert all(operation.has_ended for operation in of_length(job, 17))


def test_functional(job: Job) -> None:
    """`wait_tensor` ends a functional collective. Nothing else ends gloo's reduce_scatter, which cannot be polled."""
    assert hows(job, 22) == hows(job, 24) == ["WAIT"] * 2
    for operation in of_length(job, 22):
        assert operation.raw.wait_entered_ns is not None
    assert all(operation.has_ended for operation in of_length(job, 25) + of_length(job, 26))


def test_several_at_once(job: Job) -> None:
    """`wait_tensors` ends each of its operations once, including those that cannot be polled."""
    if not of_length(job, 28):
        pytest.skip("this torch has no wait_tensors")
    assert hows(job, 28) == hows(job, 30) == ["WAIT"] * 2
    assert all(operation.has_ended for operation in of_length(job, 33))
    waits = [[one.raw.wait_entered_ns for one in of_length(job, length)] for length in (28, 30)]
    assert all(wait is not None for wait in [*waits[0], *waits[1]])


def test_no_python_frame(job: Job) -> None:
    """A call from a thread without a Python frame is recorded, without a call site."""
    assert [(one.function, one.line, one.group.description) for one in of_length(job, 41)] == [
        ("", 0, "default_pg")
    ] * 2


def test_label(job: Job) -> None:
    """The label of `record_comm` is on its operation and on no other."""
    labelled = of_length(job, 42)
    if not labelled:
        pytest.skip("this torch has no record_comm")
    assert {operation.label for operation in labelled} == {"FSDP::all_gather (layer1)"}
    assert sum(bool(operation.label) for tape in job.tapes for operation in tape.operations) == 2


def test_reduce_op_of_one_line(job: Job) -> None:
    """A line whose reduce op changes between calls is recorded with the right op, or with none."""
    tells = job.ranks[0].lines()[-1]["tells_reduce_op"]
    expected = ["sum", "max", "min"] * 16 if tells else [""] * 48
    assert [operation.signature.reduce_op for operation in of_length(job, 43)] == expected


def test_refused_by_torch(job: Job) -> None:
    """The user's traceback has exactly one frame of ours. The record has failed, and its sequence number is reused."""
    for done, tape in zip(job.ranks, job.tapes, strict=True):
        without_us, with_us = done.lines()[:2]
        *plain, plain_frames = without_us["without_us"][:3]
        assert (with_us["with_us"][:2], plain_frames) == (plain, [])
        assert with_us["with_us"][3:5] == without_us["without_us"][3:5]
        assert with_us["with_us"][2] == with_us["with_us"][5] == ["kernel"]
        failed = [(one.name, one.raw.sequence, one.failure) for one in tape.operations if one.how == "FAILED"]
        assert failed[:3] == [("all_gather", 2, plain[0]), *[("recv", 1, "RuntimeError")] * 2]
        barriers = [one.raw.sequence for one in tape.named("barrier") if one.group.description]
        assert barriers[:2] == [1, 2]


def test_wait_that_gives_up(job: Job) -> None:
    """After a wait times out, the operation stays open for a later wait, and the traceback has one frame of ours."""
    raised = [line["too_late"] for done in job.ranks for line in done.lines() if "too_late" in line]
    is_blocking, is_evidence = False, True
    assert raised == [[["RuntimeError", "Operation timed out!", ["wait"]], [is_blocking, is_evidence]], None]
    early, late = of_length(job, 51)
    assert early.has_ended
    assert late.has_ended
    assert (early.failure, early.raw.sequence) == ("", 2)
    assert early.raw.wait_entered_ns is not None
    assert (early.raw.completed_ns or 0) - early.raw.wait_entered_ns > 0.1e9


def test_tensors_are_freed(jobs: Jobs) -> None:
    """No tensor is kept alive after its operation was waited for, even if the rank thread is stopped."""
    for rank, done in enumerate(jobs.run("freed", 2).ranks):
        ways = ["isend", "irecv"] if rank == 0 else ["irecv", "isend"]
        collectives = ["all_reduce", "all_reduce, asynchronous", "reduce_scatter"]
        assert [line["freed"] for line in done.lines()] == collectives + ways


def test_peer_dies(jobs: Jobs) -> None:
    """An operation that completes because its peer has died is recorded as failed, by a wait and by a poll."""
    job = jobs.run("peer_dies", 2, codes=[0, 7])
    assert job.ranks[0].line() == {"raised": "RuntimeError"}
    operation = job.tapes[0].only("all_reduce")
    assert (operation.how, operation.failure) == ("FAILED", "RuntimeError")
    assert operation.raw.blame is Blame.CONNECTION


def test_complete_shortly_after_its_result_was_used() -> None:
    """At the end of a tape, a Work that is about to complete is awaited.

    One that never completes only delays the end.
    """
    patches = Patches()
    works, late, stuck = Works(patches, Mock()), Mock(flags=0), Mock(flags=0)
    patches.restore()
    late.work.is_completed.side_effect, late.group.signatures.only_wait_ends = [False, False, True], False
    stuck.work.is_completed.return_value, stuck.group.signatures.only_wait_ends = False, False
    for call in (late, stuck):
        call.pointers, call.work_id, call.members = (), id(call.work), None
        works.open[call.work_id] = call
    works.stops(has_failed=False)
    assert list(works.open.values()) == [stuck]
    late.tape.complete.assert_called_once()


@NATIVE_LATER
def test_works_of_python_that_cannot_be_asked(jobs: Jobs) -> None:
    """Operations whose Python Works cannot report completion are recorded, and end when they are waited for.

    No Work is kept alive, and nothing is logged. A forked child that waits for its parent's operation ends no record of
    the parent's tape.
    """
    job = jobs.run("python_works", 1)
    if "cannot_begin" in job.ranks[0].line():
        pytest.skip("this torch takes no backends that are written in Python")
    [rank], [tape] = job.ranks, job.tapes
    assert rank.err == ""
    kept, dropped, *broadcasts, late, inherited = tape.operations
    assert [one.name for one in tape.operations] == ["all_reduce"] * 2 + ["broadcast"] * 6 + ["all_reduce"] * 2
    assert (kept.how, late.how) == ("WAIT", "WAIT")
    assert dropped.how == "open"  # `wait_tensor` may still be called for it
    assert inherited.how == "open", "a wait in a forked child is not the parent's"
    assert all(broadcast.how == "WAIT" for broadcast in broadcasts)
    # From the first wait on, each operation is known and marked to end only by a wait.
    assert Flag.END_BY_WAIT in late.raw.flags
    assert Flag.END_BY_WAIT not in kept.raw.flags
