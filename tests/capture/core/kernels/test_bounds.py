"""Memory stays bounded for programs whose calls never repeat, and their records stay correct."""

from __future__ import annotations

import pytest

from otel_torchdist.capture.core.c10d.native_kernels import CHECKED_EVERY
from otel_torchdist.capture.core.calls.signatures import RAGGED_AFTER, RAGGED_PEERS_AFTER, RaggedLines
from otel_torchdist.model.kinds import Flag, Kernel
from tests.support.launch.jobs import Job, Jobs
from tests.support.ranks.rank import SHOWS_REDUCE_OP
from tests.support.tapes.recorded import Recorded


def is_native(job: Job) -> bool:
    """Return whether the library has recorded the operation."""
    return job.tapes[0].identity.kernel is Kernel.NATIVE


@pytest.mark.thorough
def test_places_and_threads(jobs: Jobs) -> None:
    """The number of cached code objects is bounded, and a thread with few calls takes little memory."""
    (seen,) = jobs.run("many_places").ranks[0].lines()
    assert seen["code"] <= 5_500
    assert seen["per_thread_kb"] <= 32


def test_destroyed_groups(jobs: Jobs) -> None:
    """State is kept for the newest of many short-lived groups only, and all calls are recorded."""
    job = jobs.run("many_groups")
    (seen,) = job.ranks[0].lines()
    assert seen["kept"] <= 2 * CHECKED_EVERY
    (tape,) = job.tapes
    assert sum(one.function == "use" for one in tape.operations) == 2 * 400
    assert [one.failure for one in tape.operations if one.raw.tag == 77] == ["RuntimeError"] * is_native(job)
    assert all(one.raw.how for one in tape.operations)


MOST, UNUSED, AT_ONCE, STEADY, TIMES = 128, 64, 16, 10_000_000, 1_000
"""As in the program."""


@pytest.fixture(scope="module")
def tags(jobs: Jobs) -> Job:
    """Messages with a new tag each, among messages with a constant tag."""
    return jobs.run("many_tags")


def of_tag(job: Job, tag: int, name: str = "send") -> list[Recorded]:
    """Return the records of messages with a tag."""
    return [one for one in job.tapes[0].operations if one.raw.tag == tag and one.name == name]


def test_counters_of_tags(tags: Job) -> None:
    """The number of message counters is bounded, and the library's memory for them is reused."""
    (seen,) = tags.ranks[0].lines()
    assert MOST - AT_ONCE <= seen["kept"] <= MOST
    assert seen["seen"] + seen["anew"] < MOST
    assert seen["made"] <= (MOST + UNUSED + AT_ONCE if is_native(tags) else 0)


@pytest.mark.parametrize(("name", "extra"), [("send", 3), ("recv", 0)])
def test_tag_in_use(tags: Job, name: str, extra: int) -> None:
    """A tag that is always in use is counted without a gap, in both directions."""
    calls = of_tag(tags, STEADY, name)
    assert [one.raw.sequence for one in calls] == list(range(1, TIMES // 2 + extra + 1))
    assert all(one.group.aligned for one in calls)


def test_tags_that_grow(tags: Job) -> None:
    """A tag above all forgotten tags is new, so its messages can be compared."""
    for tag in (*range(6, TIMES - 1), *range(TIMES, 2 * TIMES)):
        (call,) = of_tag(tags, tag)
        assert (call.raw.sequence, call.group.aligned) == (1, True)


def test_tags_that_come_again(tags: Job) -> None:
    """After its counter was forgotten, a tag's numbers cannot be compared. Other tags continue their counts."""
    forgotten = [(one.raw.sequence, one.group.aligned) for one in of_tag(tags, 5)]
    assert forgotten == [(1, True), (1, False), (2, False), (3, False)]
    known = [(one.raw.sequence, one.group.aligned) for one in of_tag(tags, TIMES - 1)]
    assert known == [(1, True), (2, True), (3, True), (4, True)]
    assert len({one.group.key for one in tags.tapes[0].operations}) == 1


CALLS = 500
LINES = ("reduce", "gather", "spread", "take_turns")


@pytest.fixture(scope="module")
def shapes(jobs: Jobs) -> Job:
    """Calls from four lines, whose shapes never repeat."""
    return jobs.run("ragged", 2)


@pytest.mark.parametrize("line", LINES)
def test_sizes_of_ragged_calls(shapes: Job, line: str) -> None:
    """Every call of a ragged line is recorded with its size. Only the first calls have shapes."""
    for rank, tape in enumerate(shapes.tapes):
        calls = [one for one in tape.operations if one.function == line]
        roots = {"spread": (1, 1), "take_turns": (1, 0)}.get(line, (rank, rank))
        sizes = [4 * (1 + nth) * (roots[nth % 2] == rank) for nth in range(CALLS)]
        assert [one.raw.message_bytes for one in calls] == sizes
        for nth, one in enumerate(calls):
            has_shapes = nth < RAGGED_AFTER
            assert one.signature.shapes == (((1 + nth,),) if has_shapes else ())
            assert (Flag.SIGNATURE_CAPPED in one.raw.flags) is not has_shapes
            assert one.signature.dtypes == ("float32",)


def test_names_of_shapes(shapes: Job) -> None:
    """Once a line is ragged, its shapes take no more names."""
    assert all(rank.line()["names"] < len(LINES) * RAGGED_AFTER + 100 for rank in shapes.ranks)


@pytest.mark.skipif(not SHOWS_REDUCE_OP, reason="this torch does not show the reduce op to Python")
def test_reduce_ops_of_a_ragged_line(shapes: Job) -> None:
    """Reduce ops of a ragged line are correct or marked as unread, even if they alternate."""
    for tape in shapes.tapes:
        calls = enumerate(one for one in tape.operations if one.function == "reduce")
        read = [(nth % 2, one.signature.reduce_op) for nth, one in calls if Flag.REDUCE_OP_UNREAD not in one.raw.flags]
        assert len(read) > RAGGED_AFTER
        assert {*read} == {(0, "max"), (1, "sum")}


def test_python_is_left_alone(shapes: Job) -> None:
    """The library records the calls of ragged lines without Python."""
    in_python = shapes.ranks[0].line()["in_python"]
    if is_native(shapes):
        assert in_python < len(LINES) * (RAGGED_AFTER + 20)
    else:
        assert in_python >= len(LINES) * CALLS


def test_one_shape_with_many_roots_is_not_ragged() -> None:
    """One shape with many roots is not ragged, although each root needs a plan.

    With many shapes, each root's calls are.
    """
    lines = RaggedLines[str]()
    of_root = [
        ("broadcast", 1, "float32", False, root, 0, False, "", False, 4711, ("train", 3)) for root in range(1_000)
    ]
    assert not any(lines.count_shape(line) for line in of_root)
    assert [lines.count_shape(of_root[7]) for _ in range(RAGGED_PEERS_AFTER)] == [False] * (RAGGED_PEERS_AFTER - 1) + [
        True
    ]


def test_full_dictionary(jobs: Jobs) -> None:
    """When the dictionary is full, later calls lack shapes only: operation, dtype, reduce op, group, line are known."""
    job = jobs.run("full_dictionary")
    [tape] = job.tapes
    assert job.ranks[0].lines() == [{"dropped": 0}]
    assert job.ranks[0].err.count("has used nearly all of the 8192 names or 4096 KiB") == 1
    assert [operation.name for operation in tape.operations] == ["all_reduce"] * 6 + ["barrier"]
    for operation in tape.operations:
        assert (operation.function, operation.group.description) == ("late", "late")
    *sums, largest, barrier = tape.operations
    for size, operation in enumerate(sums, 1):
        assert operation.signature.shapes == ()
        assert (operation.signature.tensors, operation.signature.dtypes) == (1, ("float32",))
        assert operation.raw.message_bytes == 4 * size
        assert Flag.SIGNATURE_CAPPED in operation.raw.flags
    assert largest.signature.dtypes == ("int32",)
    if SHOWS_REDUCE_OP:
        assert (sums[0].signature.reduce_op, largest.signature.reduce_op) == ("sum", "max")
    assert Flag.SIGNATURE_CAPPED not in barrier.raw.flags
