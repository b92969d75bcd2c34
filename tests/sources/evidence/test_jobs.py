"""What real jobs have left: torchrun's logs and error files, and stacks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from otel_torchdist.sources.evidence.facts import ProcessExit, ProcessStacks
from otel_torchdist.sources.evidence.files import read_files
from otel_torchdist.sources.evidence.findings import ToolFinding, findings_of, outside_of_collectives
from otel_torchdist.sources.evidence.statements import Evidence, StatementKind
from tests.sources.evidence.reading import DATA, read, read_data


def found_in(evidence: Evidence, kind: StatementKind) -> list[ToolFinding]:
    """The findings of a kind."""
    return [one for one in findings_of(evidence.statements) if one.kind is kind]


@pytest.mark.parametrize(
    ("log", "first", "how"),
    [
        ("gloo_raise.log", 1, "ended with exit code 1, after ValueError: loss is nan"),
        ("gloo_kill.log", 2, "ended with SIGKILL"),
        ("gloo_segv.log", 2, "ended with SIGSEGV"),
        ("gloo_sleep.log", 2, "ended with exit code 1, after RuntimeError: Timed out waiting 8000ms for send"),
    ],
)
def test_first_failure(log: str, first: int, how: str) -> None:
    """Torchrun's table names the rank that failed first, and how; those that it ended come behind."""
    evidence = read_data(log)
    ends = found_in(evidence, StatementKind.ENDED)
    assert (ends[0].ranks, ends[0].is_first) == ((first,), True)
    assert ends[0].text.startswith(how)
    assert {rank for one in ends for rank in one.ranks} == {0, 1, 2}
    assert evidence.warnings == ()


def test_exceptions_with_their_places() -> None:
    """The rank that raised, and those that lost it, each with the line of the script."""
    own, others = sorted(found_in(read_data("gloo_raise.log"), StatementKind.RAISED), key=lambda one: len(one.ranks))
    assert (own.ranks, own.text, own.frame and own.frame.line) == ((1,), "ValueError: loss is nan", 11)
    assert (others.ranks, others.frame and others.frame.line) == ((0, 2), 20)
    assert others.text.startswith("RuntimeError: Connection closed by peer.")


def test_timeouts_of_gloo() -> None:
    """They stand in the exceptions of the ranks that waited; the sleeping one is not among them."""
    raised = found_in(read_data("gloo_sleep.log"), StatementKind.RAISED)
    assert sorted(rank for one in raised for rank in one.ranks) == [0, 2]
    assert all("Timed out waiting 8000ms" in one.text for one in raised)


def test_rank_that_missed_a_barrier() -> None:
    """`monitored_barrier` names it by its rank in a group that is not named."""
    [missed] = found_in(read_data("gloo_barrier.log"), StatementKind.NOT_REACHED)
    assert (missed.ranks, missed.unidentified) == ((), ("rank 1 of its group",))


def test_crash() -> None:
    """Faulthandler's dump does not state the rank, and none is guessed."""
    [crash] = found_in(read_data("gloo_segv.log"), StatementKind.STACKS)
    assert (crash.ranks, crash.text, crash.frame and crash.frame.line) == ((), "crashed: Segmentation fault", 14)


def test_error_file_of_a_rank(tmp_path: Path) -> None:
    """Its own path shows the local rank; torchrun's table, where it is at hand, the global one."""
    place = tmp_path / "none_py2gfb_m" / "attempt_0" / "1" / "error.json"
    place.parent.mkdir(parents=True)
    shutil.copy(DATA / "error.json", place)
    [alone] = read_files([place]).statements
    assert (alone.rank, alone.local_rank, alone.text) == (None, 1, "ValueError: loss is nan")
    together = read_files([place, DATA / "gloo_raise.log"]).statements
    assert [one.rank for one in together if one.source.path == str(place)] == [1]


def test_error_file_with_a_plain_message(tmp_path: Path) -> None:
    """The older format of torchelastic."""
    [one] = read(tmp_path, '{"message": "RuntimeError: gone\\nmore", "timestamp": 12}', name="error{}.json").statements
    assert one.text == "RuntimeError: gone"


def test_py_spy() -> None:
    """Text and JSON show the same thread and place, and whether the process is in an operation."""
    launcher, waiting, sleeping = read_data("py_spy.txt").statements
    [as_json] = read_data("py_spy.json").statements
    assert isinstance(as_json.fact, ProcessStacks)
    assert isinstance(sleeping.fact, ProcessStacks)
    assert sleeping.pid == as_json.pid
    assert [(one.thread, one.name) for one in sleeping.fact.threads] == [(sleeping.pid, "MainThread")]
    assert [frame.line for frame in sleeping.fact.threads[0].frames] == [
        frame.line for frame in as_json.fact.threads[0].frames
    ]
    found = {finding.unidentified[0]: finding.text for finding in findings_of([launcher, waiting, sleeping])}
    assert found[f"process {waiting.pid}"] == "in all_reduce"
    assert found[f"process {sleeping.pid}"] == "in no operation of torch.distributed"


def test_ranks_of_py_spy_dumps(tmp_path: Path) -> None:
    """From the file's name; then it shows which rank is in no operation while others are."""
    _, waiting, sleeping = (DATA / "py_spy.txt").read_text().split("Process ")[1:]
    names = {"stacks_rank0.txt": waiting, "stacks_rank1.txt": sleeping}
    for name, text in names.items():
        (tmp_path / name).write_text(f"Process {text}")
    evidence = read_files(tmp_path / name for name in names)
    assert outside_of_collectives(evidence.statements) == ((1,), (0,))


def test_rank_of_a_process_from_torchruns_table(tmp_path: Path) -> None:
    """A pid in a dump is that of the rank whose end torchrun reports."""
    dump = 'Process 17720: python train.py\nPython v3.11.7 (/usr/bin/python)\n\nThread 17720 (active): "MainThread"\n'
    path = tmp_path / "dump.txt"
    path.write_text(f"{dump}    step (train.py:3)\n")
    [stacks] = [
        one for one in read_files([path, DATA / "gloo_kill.log"]).statements if one.kind is StatementKind.STACKS
    ]
    assert stacks.rank == 2


def test_name_against_content(tmp_path: Path) -> None:
    """A file's name that contradicts its lines is reported, and does not count."""
    text = (DATA / "gloo_raise.log").read_text()
    evidence = read(tmp_path, text, name="rank{}.log")
    assert any("its name says rank 0, its lines say rank 0, 1, 2" in warning for warning in evidence.warnings)
    assert found_in(evidence, StatementKind.ENDED)[0].ranks == (1,)


def test_different_ends_of_one_rank() -> None:
    """Two logs that contradict each other, as of two attempts, are reported and not merged."""
    evidence = read_data("gloo_kill.log", "gloo_segv.log")
    assert any(warning.startswith("rank 2 has 2 different exits: SIGKILL") for warning in evidence.warnings)


def test_foreign_files(tmp_path: Path) -> None:
    """Files that hold nothing of interest are listed, and missing ones reported."""
    (tmp_path / "empty").touch()
    (tmp_path / "pickle").write_bytes(b"\x80\x02}q\x00.")
    (tmp_path / "json").write_text('{"version": "2.10", "entries": []}')
    names = ["empty", "pickle", "json", "missing"]
    evidence = read_files(tmp_path / name for name in names)
    assert evidence.unrecognized == tuple(str(tmp_path / name) for name in names[:3])
    assert evidence.warnings == (f"{tmp_path / 'missing'}: No such file or directory",)


def test_exit_codes() -> None:
    """Signals are named, whether the launcher or a shell reports them."""
    ends = [one.fact for one in read_data("gloo_kill.log").statements if isinstance(one.fact, ProcessExit)]
    assert {(one.exit_code, one.signal) for one in ends} == {(None, "SIGKILL"), (None, "SIGTERM")}
