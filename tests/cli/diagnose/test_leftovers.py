"""`otel-torchdist diagnose PATH…`: what counts as a path, what is printed, and how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sources.flight.made_dumps import call, document, late_rank, write, write_json
from tests.support.commands.asking import ask, ask_as_people_do

ABSENT = (
    r"verdict  rank 2 has not entered all_reduce \(sequence 4, default_pg\) for up to 10 min 0 s; .*3 of 4 ranks wait.*"
)


def test_report(base: Path, tmp_path: Path) -> None:
    """The verdict, then each rank; what was not recorded is not mentioned."""
    answer = ask(base, write(tmp_path, late_rank()))
    assert (answer.code, answer.err) == (1, "")
    assert answer.has(r"dumps of the flight recorder, nccl 2\.27\.3, format 2\.9, of 4 of 4 ranks")
    assert answer.has(ABSENT)
    assert answer.has("rank 2  nothing is open")
    assert answer.has(r"  in     all_reduce \(sequence 4, default_pg\) of ranks 0-3 for 10 min 0 s")


def test_document(base: Path, tmp_path: Path) -> None:
    """The JSON document has the keys of a recorded run's, null where a dump says nothing."""
    document_here = ask(base, write_json(tmp_path, late_rank()), "--json").document
    assert (document_here["schema"], document_here["problem"]) == (2, True)
    assert document_here["moment"] == {"time": "2025-09-23T07:05:09.000000Z", "is_now": False, "bound": "up to"}
    verdict = document_here["verdict"]
    assert (verdict["kind"], verdict["ranks"], verdict["source"]) == ("absent", [2], "flight recorder")
    assert document_here["verdicts"] == [verdict]
    [rank, *_] = document_here["ranks"]
    assert (rank["rank"], rank["dump"]) == (0, str(tmp_path / "rank_0.json"))
    unknown = ("life", "exception", "pid", "tape", "step", "death", "last_sign_of_life", "silent_s", "stack")
    assert {rank[key] for key in unknown} == {None}
    assert rank["open"][0]["peers"] == [0, 1, 2, 3]


def test_no_stall(base: Path, tmp_path: Path) -> None:
    """A job in which nothing was open: no verdict, and exit code 0."""
    answer = ask(base, write(tmp_path, {rank: document([call(1)], {"0": range(2)}) for rank in range(2)}))
    assert (answer.code, answer.err) == (0, "")
    assert answer.has(r"no verdict  no operation was open for 1 s")


def test_large_job(base: Path, tmp_path: Path) -> None:
    """In a large job ranks that do the same share a paragraph, after those that are named."""
    answer = ask(base, write(tmp_path, late_rank(60)))
    assert answer.out.count("\nrank ") == 2
    assert answer.has("ranks 0-1,3-59  59 ranks do the same; the longest wait:")


def test_warnings(base: Path, tmp_path: Path) -> None:
    """What could not be used is on stderr, a line each, and in the document; the rest is used."""
    write(tmp_path, late_rank())
    (tmp_path / "rank_9").write_bytes(b"")
    (tmp_path / "train.log").write_text("hello\n")
    answer = ask(base, tmp_path)
    assert answer.code == 1 and answer.has(ABSENT)
    assert answer.err.splitlines() == [
        f"otel-torchdist: warning: {tmp_path}/rank_9: it is empty",
        f"otel-torchdist: warning: 1 other file that no reader recognizes, such as {tmp_path}/train.log",
    ]
    assert len(ask(base, tmp_path, "--json").document["warnings"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/nonexistent/dumps"], "/nonexistent/dumps: no such file or directory"),
        (["nonsense"], "nonsense: neither a run's id nor a path"),
        (["feed", "nonsense"], "feed: no such file or directory"),
    ],
)
def test_no_such_path(base: Path, arguments: list[str], message: str) -> None:
    """What is neither a run nor a path is named."""
    answer = ask(base, *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"otel-torchdist: {message}")


def test_nothing_to_read(base: Path, tmp_path: Path) -> None:
    """A folder without anything of interest: exit code 2."""
    (tmp_path / "rank_3").write_bytes(b"\x80\x02.")
    answer = ask(base, tmp_path)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.splitlines()[-1] == f"otel-torchdist: {tmp_path}: nothing that can be read"


def test_path_that_looks_like_a_run(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is named like the id of a run is read as a folder; without it, the id is looked up."""
    monkeypatch.chdir(tmp_path)
    assert "no run begins with feed" in ask(base, "feed").err or "no tape" in ask(base, "feed").err
    write(tmp_path / "feed", late_rank())
    assert ask(base, "feed").has(ABSENT)


def test_completion(base: Path, tmp_path: Path) -> None:
    """The shell completes paths, since one that asks us completes nothing by itself."""
    write(tmp_path / "dumps", late_rank(1))
    (tmp_path / "dump.tar").touch()
    typed = {"COMP_WORDS": f"otel-torchdist diagnose {tmp_path}/dum", "COMP_CWORD": "2"}
    answer = ask_as_people_do(base, _OTEL_TORCHDIST_COMPLETE="complete_bash", **typed)
    assert answer.out.split() == [f"{tmp_path}/dump.tar", f"{tmp_path}/dumps/"]
