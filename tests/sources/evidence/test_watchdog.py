"""Lines of NCCL's watchdog in the formats of all releases."""

from __future__ import annotations

import pytest

from otel_torchdist.sources.evidence.facts import GroupMark, OperationTimeout, ReportedProgress
from otel_torchdist.sources.evidence.lines import parsed
from otel_torchdist.sources.evidence.statements import Statement, StatementKind
from otel_torchdist.sources.evidence.texts.process_groups import WATCHDOG
from tests.sources.evidence import quoted


def said(line: str) -> list[Statement]:
    """What a line says."""
    return [*WATCHDOG.read(parsed(1, line.encode()), "job.log")]


def facts(line: str) -> list[object]:
    """The facts of a line."""
    return [one.fact for one in said(line)]


def test_timeouts_of_old_releases() -> None:
    """What a release does not write is None and not guessed: position, sizes, and the global rank."""
    assert facts(quoted.TORCH_1_13) == [OperationTimeout("all_reduce", None, None, 1_800_834, 1_800_000)]
    assert facts(quoted.TORCH_2_0) == [OperationTimeout("broadcast", 56_693, None, 1_804_371, 1_800_000)]
    [one] = said(quoted.TORCH_2_0)
    assert (one.rank, one.group) == (None, GroupMark("", "", 3))


def test_timeout_with_sizes_and_rank() -> None:
    """`[rank1]:` is the global rank, `[Rank 1]` the one within the group."""
    [one] = said(quoted.TORCH_2_2)
    assert one.fact == OperationTimeout("broadcast", 880, 131_137_536, 1_800_695, 1_800_000)
    assert (one.rank, one.kind) == (1, StatementKind.TIMED_OUT)


@pytest.mark.parametrize(
    ("line", "rank", "group", "reached"),
    [
        (quoted.TORCH_2_3, 7, GroupMark("0", "", 7), ReportedProgress(1, -1, 1)),
        (quoted.TORCH_2_4, 3, GroupMark("0", "default_pg", 3), ReportedProgress(2082, 2069, 2070)),
        (quoted.TORCH_2_5, 1, GroupMark("0", "default_pg", 1), ReportedProgress(811, 807, 808)),
        (quoted.TORCH_2_5_UNNAMED, 3, GroupMark("3", "", 3), ReportedProgress(32, 31, 32)),
        (quoted.TORCH_2_6, 1, GroupMark("1", "", 1), ReportedProgress(547, -1, 1)),
        (quoted.asked_for_dump(7, 59_957, by=3), 7, GroupMark("0", "default_pg", 7), ReportedProgress(59_957, 59_957)),
    ],
)
def test_progress(line: str, rank: int, group: GroupMark, reached: ReportedProgress) -> None:
    """Each release's words for the operations enqueued and completed last."""
    [one] = said(line)
    assert (one.kind, one.rank, one.group, one.fact) == (StatementKind.PROGRESS, rank, group, reached)


def test_group_of_the_line_on_the_threads_end() -> None:
    """It has two prefixes; the one that names the group counts."""
    line = (
        "[rank3]:[E310 ProcessGroupNCCL.cpp:1] [PG ID 4 PG GUID 9(mesh_tp) Rank 1] Process group watchdog thread"
        " terminated with exception: [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5,"
        " OpType=_REDUCE_SCATTER_BASE, NumelIn=8, NumelOut=4, Timeout(ms)=1000) ran for 1001 milliseconds before"
        " timing out."
    )
    [one] = said(line)
    assert (one.rank, one.group) == (3, GroupMark("9", "mesh_tp", 1))
    assert isinstance(one.fact, OperationTimeout)
    assert one.fact.operation == "reduce_scatter_tensor"


def test_global_rank_in_the_default_group() -> None:
    """Without `[rank3]:`, the rank within the default group is the global one; within another it is not."""
    line = (
        "[PG ID {} PG GUID {} Rank 3] Timeout at NCCL work: 2, last enqueued NCCL work: 2, last completed NCCL work: 1"
    )
    assert said(line.format(0, "0(default_pg)"))[0].rank == 3
    assert said(line.format(2, "7(mesh_dp)"))[0].rank is None


def test_stuck_watchdog() -> None:
    """The heartbeat monitor's line."""
    assert [one.kind for one in said(quoted.STUCK)] == [StatementKind.WATCHDOG_STUCK]


@pytest.mark.parametrize(
    "line",
    [
        "[PG ID 0 PG GUID 0(default_pg) Rank 1] NCCL Work update periodically: last enqueued NCCL work: 5, last"
        " completed NCCL work: 5.",
        "watchdog (4.0.0) observer started",
        "Last enqueued NCCL work: many, last completed NCCL work: none",
    ],
)
def test_lines_that_are_none(line: str) -> None:
    """Lines on progress at any time, and of other programs, say nothing."""
    assert said(line) == []


@pytest.mark.parametrize(
    ("prefix", "label", "local_rank", "rank"),
    [
        ("", "", None, 1),
        ("[default5]:", "[default5]:", 5, 1),
        ("3: ", "3:", None, 1),
        ("2025-02-27T16:30:43.48675097Z stderr F ", "", None, 1),
        (
            "\x1b[36m(EnvWorker pid=531820, ip=172.16.119.17)\x1b[0m ",
            "(EnvWorker pid=531820, ip=172.16.119.17)",
            None,
            1,
        ),
        ("worker-1  | ", "worker-1  |", None, 1),
        ("[1,3]<stderr>:", "[1,3]<stderr>:", None, 1),
        ("Epoch 10: 240it [05:55,  1.47s/it, loss=5.46]", "", None, 1),
    ],
)
def test_prefixes(prefix: str, label: str, local_rank: int | None, rank: int) -> None:
    """What launchers, log shippers and progress bars put before a line."""
    [one] = said(prefix + quoted.TORCH_2_5)
    assert (one.label, one.local_rank, one.rank) == (label, local_rank, rank)
