"""Reports of NCCL's RAS."""

from __future__ import annotations

from pathlib import Path

from otel_torchdist.sources.evidence.facts import LaunchCount
from otel_torchdist.sources.evidence.statements import StatementKind
from tests.sources.evidence import quoted
from tests.sources.evidence.reading import read


def test_ranks_with_another_count(tmp_path: Path) -> None:
    """The ranks that RAS lists are the outliers; what most have launched stands beside."""
    found = read(tmp_path, quoted.RAS_AHEAD).statements
    assert [(one.kind, one.rank, one.pid) for one in found] == [
        (StatementKind.BEHIND, 12, 323_032),
        (StatementKind.BEHIND, 13, 323_033),
    ]
    assert found[0].fact == LaunchCount("fa93daea854b060b", "AllGather", 641, 640)
    assert found[0].text == "has launched 641 AllGather operations, most others 640"


def test_single_outlier(tmp_path: Path) -> None:
    """RAS describes a single rank in one line, and NCCL 2.24 counts all operations together."""
    text = quoted.RAS_AHEAD.replace("different AllGather operation", "different collective operation")
    text = text[: text.index("  30 ranks")] + (
        "  31 ranks have launched up to operation 640\n"
        "  Rank 12 has launched up to operation 639 -- GPU 4 managed by process 323032 on node 10.137.190.124\n"
    )
    [one] = read(tmp_path, text).statements
    assert (one.rank, one.fact) == (12, LaunchCount("fa93daea854b060b", "", 639, 640))


def test_missing_rank(tmp_path: Path) -> None:
    """A process that RAS cannot reach, and the rank that its communicator lacks."""
    process, rank = read(tmp_path, quoted.RAS_DEAD).statements
    assert (process.kind, process.rank, process.pid) == (StatementKind.MISSING, None, 3_487_984)
    assert process.text == "process 3487984 on 172.16.64.213 with GPU 5: considered dead by NCCL's RAS"
    assert (rank.kind, rank.rank) == (StatementKind.MISSING, 21)


def test_rank_of_a_smaller_communicator(tmp_path: Path) -> None:
    """In a communicator that lacks some of the job's GPUs, a rank is not the global one."""
    text = quoted.RAS_AHEAD.replace(
        " 1         4         8        32        32 ", " 8         4         1         4        32 "
    )
    found = read(tmp_path, text).statements
    assert [one.rank for one in found] == [None, None]
    assert [one.group.rank for one in found if one.group is not None] == [12, 13]


def test_json(tmp_path: Path) -> None:
    """The machine-readable report says the same."""
    [one] = read(tmp_path, quoted.RAS_JSON, name="ras{}.json").statements
    assert (one.kind, one.rank, one.pid) == (StatementKind.MISSING, 1, 1_524_345)
