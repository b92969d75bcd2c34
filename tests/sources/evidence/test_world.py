"""Snapshots from the lines of watchdogs: the judge names the rank, or none."""

from __future__ import annotations

from pathlib import Path

from otel_torchdist.cli.diagnose.texts import lines_of_texts
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.runs.diagnosis.texts import TextFindings, judge_texts
from tests.sources.evidence import quoted
from tests.sources.evidence.reading import read, read_data

RULES = StallRules(10_000_000_000)


def judged(folder: Path, *lines: str) -> TextFindings:
    """The verdict on lines of one log."""
    return judge_texts(read(folder, "\n".join(lines)).statements, RULES)


def test_rank_that_has_not_enqueued_it(tmp_path: Path) -> None:
    """The lines of a real job of eight ranks: the one that did not time out had enqueued one operation less."""
    lines = [line for rank in range(7) for line in quoted.timed_out(rank, 59_958)]
    said = judged(tmp_path, *lines, quoted.asked_for_dump(7, 59_957, by=3))
    assert said.verdict is not None
    assert (said.verdict.kind, said.verdict.ranks) == (VerdictKind.ABSENT, (7,))
    assert said.sentence == (
        "rank 7 has not entered all_reduce (sequence 59958, default_pg) for 30 min 0 s; "
        "7 of 8 ranks wait in _all_reduce at tensor_parallel.py:8472. "
        "next: find out why rank 7 did not go on from its last call; while the job runs, `otel-torchdist profile "
        "--rank 7` or py-spy shows what its threads do"
    )
    report = "\n".join(line.plain for line in lines_of_texts(said))
    assert "ranks 0-6     all_reduce #59958 timed out after 1800 s, called in _all_reduce" in report


def test_different_operations_at_one_position(tmp_path: Path) -> None:
    """Two ranks of a published log called `broadcast` and `all_reduce` as their 80078th operation."""
    more = quoted.TORCH_2_4_MISMATCH[1].replace("rank7", "rank3").replace("Rank 7", "Rank 3")
    said = judged(tmp_path, *quoted.TORCH_2_4_MISMATCH, more)
    assert said.verdict is not None
    assert (said.verdict.kind, said.verdict.ranks) == (VerdictKind.MISMATCHED, (3, 7))


def test_different_sizes(tmp_path: Path) -> None:
    """An `all_reduce` of another size is named too."""
    lines = [line for rank in (0, 1) for line in quoted.timed_out(rank, 5)]
    said = judged(tmp_path, *lines, *quoted.timed_out(2, 5, numel=16))
    assert said.verdict is not None
    assert (said.verdict.kind, said.verdict.ranks) == (VerdictKind.MISMATCHED, (2,))


def test_rank_that_wrote_nothing(tmp_path: Path) -> None:
    """It may hang anywhere, or its log may be missing: it is named as silent, and no verdict is given."""
    said = judged(tmp_path, *(line for rank in (0, 1, 3) for line in quoted.timed_out(rank, 5)))
    assert (said.verdict, said.silent) == (None, (2,))


def test_all_that_wrote_are_in_it(tmp_path: Path) -> None:
    """A silent rank above the highest one cannot be known of, so that this is no verdict on the transport."""
    said = judged(tmp_path, *(line for rank in (0, 1) for line in quoted.timed_out(rank, 5)))
    assert (said.verdict, said.silent) == (None, ())


def test_several_attempts_in_one_log(tmp_path: Path) -> None:
    """Timeouts of two attempts are not compared with each other."""
    first = [*quoted.timed_out(0, 90), quoted.asked_for_dump(1, 89, by=0)]
    said = judged(tmp_path, *first, *quoted.timed_out(0, 5), quoted.asked_for_dump(1, 4, by=0))
    assert said.verdict is None


def test_rank_that_waits_in_another_group(tmp_path: Path) -> None:
    """It has not come to the default group's operation because it is held up itself: somebody else is to blame."""
    lines = [line for rank in (0, 1) for line in quoted.timed_out(rank, 9)]
    held_up = [line.replace("0(default_pg)", "3(mesh_tp)") for line in quoted.timed_out(2, 5)[:2]]
    said = judged(tmp_path, *lines, *held_up, quoted.asked_for_dump(2, 8, by=0))
    assert said.verdict is None
    both = judged(tmp_path, *lines, *held_up, *(quoted.asked_for_dump(rank, 8, by=0) for rank in (2, 3)))
    assert both.verdict is not None
    assert (both.verdict.kind, both.verdict.ranks) == (VerdictKind.ABSENT, (3,))


def test_group_without_a_name(tmp_path: Path) -> None:
    """Lines of a group other than the default one give findings, no verdict: its members are not known."""
    lines = [line.replace("0(default_pg)", "3(mesh_dp)") for line in quoted.timed_out(0, 5)]
    assert judged(tmp_path, *lines, quoted.asked_for_dump(1, 4, by=0)).verdict is None


def test_logs_of_gloo() -> None:
    """Gloo does not number its operations, so its logs give findings only."""
    said = judge_texts(read_data("gloo_sleep.log").statements, RULES)
    assert said.verdict is None
    assert said.has_problem
