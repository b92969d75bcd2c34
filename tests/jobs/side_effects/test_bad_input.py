"""Mistakes that torch refuses are raised to the user as without us, and are on the tape as what they were."""

from __future__ import annotations

from tests.jobs.side_effects.conftest import Run


def test_mistakes(run: Run) -> None:
    """Type, text and chain of each exception are unchanged, with at most one frame of ours, and work continues."""
    job = run("refused", 2)
    for done, tape in zip(job.ranks, job.tapes, strict=True):
        lines = done.lines()
        without_us, with_us = lines[: len(lines) // 2], lines[len(lines) // 2 :]
        *before, last_before = without_us
        *after, last_after = with_us
        assert last_before == last_after == {"still_works": 2.0}
        for plain, ours in zip(before, after, strict=True):
            assert plain["ours"] == []
            assert {**ours, "ours": []} == plain
            assert len(ours["ours"]) == plain["is_issued"], ours
        issued = [plain for plain in before if plain["is_issued"]]
        failed = [operation.failure for operation in tape.operations if operation.how == "FAILED"]
        assert failed == [plain["type"] for plain in issued]
        ended = [operation.name for operation in tape.operations if operation.has_ended]
        assert ended == ["all_reduce"]
