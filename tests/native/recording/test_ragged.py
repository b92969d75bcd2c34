"""Calls whose shapes never repeat: bounded names, the right sizes, and mostly without Python."""

from __future__ import annotations

import pytest

from otel_torchdist.capture.c10d.calls.ragged import RAGGED_AFTER, RAGGED_PEERS_AFTER, RaggedLines
from otel_torchdist.tape.layout import Flag
from tests.support.launch.jobs import Job, Jobs
from tests.support.native.native_library import KERNELS
from tests.support.ranks.rank import SHOWS_REDUCE_OP

TIMES = 500
LINES = ("reduce", "gather", "spread", "take_turns")


@pytest.fixture(scope="module")
def ragged(jobs_of: dict[str, Jobs]) -> dict[str, Job]:
    """The program, recorded by each kernel."""
    return {kernel: jobs.run("ragged", 2) for kernel, jobs in jobs_of.items()}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("line", LINES)
def test_sizes_are_right(ragged: dict[str, Job], kernel: str, line: str) -> None:
    """Every call is there with the size of its message; shapes only of the first ones from a line."""
    for rank, tape in enumerate(ragged[kernel].tapes):
        calls = [one for one in tape.operations if one.function == line]
        assert len(calls) == TIMES
        roots = {"spread": (1, 1), "take_turns": (1, 0)}.get(line, (rank, rank))
        sizes = [4 * (1 + nth) * (roots[nth % 2] == rank) for nth in range(TIMES)]
        assert [one.raw.message_bytes for one in calls] == sizes
        for nth, one in enumerate(calls):
            has_shapes = nth < RAGGED_AFTER
            assert one.signature.shapes == (((1 + nth,),) if has_shapes else ())
            assert (Flag.SIGNATURE_CAPPED in one.raw.flags) is not has_shapes
            assert one.signature.dtypes == ("float32",)


def test_one_shape_with_many_roots_is_not_ragged() -> None:
    """Each root needs a plan of its own, but the shape repeats; with many shapes, each root's calls get ragged."""
    lines = RaggedLines[str]()
    of_root = [
        ("broadcast", 1, "float32", False, root, 0, False, "", False, 4711, ("train", 3)) for root in range(1_000)
    ]
    assert not any(lines.counts(line) for line in of_root)
    assert [lines.counts(of_root[7]) for _ in range(RAGGED_PEERS_AFTER)] == [False] * (RAGGED_PEERS_AFTER - 1) + [True]


@pytest.mark.parametrize("kernel", KERNELS)
def test_names_are_bounded(ragged: dict[str, Job], kernel: str) -> None:
    """Once a line is known to be ragged, its shapes take no names any more."""
    for rank in ragged[kernel].ranks:
        assert rank.line()["names"] < len(LINES) * RAGGED_AFTER + 100


@pytest.mark.skipif(not SHOWS_REDUCE_OP, reason="this torch does not show the reduce op to Python")
@pytest.mark.parametrize("kernel", KERNELS)
def test_reduce_ops_are_right(ragged: dict[str, Job], kernel: str) -> None:
    """Also where they alternate at a ragged line."""
    for tape in ragged[kernel].tapes:
        calls = [one for one in tape.operations if one.function == "reduce"]
        found = [one.signature.reduce_op for one in calls if Flag.REDUCE_OP_UNREAD not in one.raw.flags]
        assert len(found) > RAGGED_AFTER
        wrong = [
            one
            for nth, one in enumerate(calls)
            if Flag.REDUCE_OP_UNREAD not in one.raw.flags and one.signature.reduce_op != ("max", "sum")[nth % 2]
        ]
        assert not wrong


def test_python_is_left_alone(ragged: dict[str, Job]) -> None:
    """After that the library records them by itself."""
    counts = {kernel: ragged[kernel].ranks[0].line()["in_python"] for kernel in KERNELS}
    assert counts["python"] >= len(LINES) * TIMES
    assert counts["native"] < len(LINES) * (RAGGED_AFTER + 20)
