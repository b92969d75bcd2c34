"""`otel-torchdist export`: its options, what it reports, and what it never does to a user's files."""

from __future__ import annotations

import pickle
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.cli.export.flight_recorder import FolderError, check_folder, write_dumps
from tests.support.commands.asking import Answer, ask
from tests.support.commands.running import SCRIPT, environment
from tests.support.tapes.fake_tape import FakeTape

OURS = pickle.dumps({"exported_by": "otel-torchdist", "entries": []}, protocol=2)
THEIRS = pickle.dumps({"version": "2.10", "entries": []}, protocol=2)
RUN = 0x11AA << 112
SECOND = 1_000_000_000


@pytest.fixture
def run(base: Path) -> None:
    """The tapes of a run of four ranks that is over: twenty calls of all_reduce each, then one of broadcast."""
    directory = base / "job-000000000000000a"
    directory.mkdir(mode=0o700)
    began = time.monotonic_ns() - 100 * SECOND
    for rank in range(4):
        tape = FakeTape(directory, rank, 4, RUN)
        for nth in range(1, 22):
            tape.run("broadcast" if nth == 21 else "all_reduce", at=began + nth * SECOND, lasts=1000, sequence=nth)
        tape.close()


@pytest.fixture
def export(base: Path, run: None, tmp_path: Path) -> Callable[..., Answer]:
    """Exports that run into a folder `out`."""

    def export(*arguments: str) -> Answer:
        return ask(base, "--flight-recorder", tmp_path / "out", *arguments, command="export")

    return export


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    """The folder; in the end nothing unfinished is left in it."""
    folder = tmp_path / "out"
    yield folder
    if folder.is_dir():
        assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def calls(folder: Path) -> dict[int, list[int]]:
    """The sequence numbers in each dump, by rank."""
    return {
        int(path.name.rpartition("_")[2]): [
            entry["collective_seq_id"] for entry in pickle.loads(path.read_bytes())["entries"]
        ]
        for path in folder.glob("comm_lib_trace_rank_*")
    }


def on_all_ranks(sequences: list[int]) -> dict[int, list[int]]:
    """Dumps of all four ranks with these sequence numbers."""
    return {rank: sequences for rank in range(4)}


def test_whole_run(export: Callable[..., Answer], out: Path) -> None:
    """All calls of all ranks, with how to go on; the folder is created, with those above it."""
    answer = export()
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == f"4 dumps with 84 calls of run 11aa0000 in {out}\nopen with: torchfrtrace {out}\n"
    assert calls(out) == on_all_ranks([*range(1, 22)])


def test_choices(export: Callable[..., Answer], out: Path) -> None:
    """Kinds, ranks and the newest calls are chosen together; each export replaces the one before, whole."""
    assert export("--kinds", "broadcast").code == 0
    assert calls(out) == on_all_ranks([21])
    assert export("--kinds", "all_red*,broadcast", "--last", "3").code == 0
    assert calls(out) == on_all_ranks([19, 20, 21])
    assert export("--last", "5500ms").code == 0
    assert calls(out) == on_all_ranks([16, 17, 18, 19, 20, 21])
    answer = export("--ranks", "0-1,3", "--last", "1")
    assert calls(out) == {0: [21], 1: [21], 3: [21]}
    assert answer.out.splitlines() == [
        f"3 dumps with 3 calls of run 11aa0000 in {out}",
        "rank 2 has no dump here, so torchfrtrace needs --allow-incomplete-ranks",
        f"open with: torchfrtrace {out} --allow-incomplete-ranks",
    ]


def test_kind_that_no_rank_has_called(export: Callable[..., Answer], out: Path) -> None:
    """A misspelled kind is named, with those that there are; the others are written."""
    answer = export("--kinds", "allreduce,broadcast")
    assert (answer.code, calls(out)[0]) == (0, [21])
    assert answer.err == (
        "otel-torchdist: warning: --kinds: no rank has called allreduce; on the tapes: all_reduce, broadcast\n"
    )


def test_rank_without_a_tape(export: Callable[..., Answer], out: Path) -> None:
    """A rank that is not here is named, and the others are written; if none is here, nothing is written."""
    answer = export("--ranks", "3-4")
    assert (answer.code, sorted(calls(out))) == (0, [3])
    assert "warning: --ranks: rank 4 has no calls here\n" in answer.err
    answer = export("--ranks", "9")
    assert (answer.code, sorted(calls(out))) == (ExitCode.NOTHING_FOUND, [3])


def test_no_such_run(base: Path, export: Callable[..., Answer], out: Path) -> None:
    """A run that is not there is reported as by `diagnose`, before anything is written."""
    answer = export("feed")
    assert (answer.code, out.exists()) == (ExitCode.NOTHING_FOUND, False)
    assert answer.err == ask(base, "feed").err


def test_earlier_export_is_replaced(export: Callable[..., Answer], out: Path) -> None:
    """Dumps of ranks that are not written again go, and so do unfinished files of an export that was killed."""
    out.mkdir()
    (out / "comm_lib_trace_rank_77").write_bytes(OURS)
    (out / ".otel-torchdist-0.1.part").write_bytes(b"unfinished")
    assert export().code == 0
    assert sorted(calls(out)) == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["comm_lib_trace_rank_2", "comm_lib_trace_rank_9", "notes.txt", ".hidden"])
def test_files_of_others(export: Callable[..., Answer], out: Path, name: str) -> None:
    """A folder with anything else is left alone. With --force its dumps are replaced, whatever wrote them."""
    out.mkdir()
    (out / name).write_bytes(THEIRS)
    (out / "comm_lib_trace_rank_1").write_bytes(OURS)
    answer = export()
    assert answer.code == ExitCode.NO_DIRECTORY
    assert answer.err.startswith(f"otel-torchdist: {out}: it holds files of other programs ({name})")
    assert [path.read_bytes() for path in sorted(out.iterdir())] == [
        THEIRS if path.name == name else OURS for path in sorted(out.iterdir())
    ]
    assert export("--force").code == 0
    assert sorted(calls(out)) == [0, 1, 2, 3]
    if not name.startswith("comm"):
        assert (out / name).read_bytes() == THEIRS
        (out / name).unlink()


def test_folders_and_links_of_others(out: Path, tmp_path: Path) -> None:
    """A folder or link with the name of a dump is not one that we have written."""
    out.mkdir()
    (out / "comm_lib_trace_rank_0").mkdir()
    with pytest.raises(FolderError, match="it holds files of other programs"):
        check_folder(out, force=False)
    (out / "comm_lib_trace_rank_0").rmdir()
    (tmp_path / "precious").write_bytes(OURS)
    (out / "comm_lib_trace_rank_0").symlink_to(tmp_path / "precious")
    with pytest.raises(FolderError, match="it holds files of other programs"):
        check_folder(out, force=False)
    write_dumps(out, [(0, b"new")])
    assert (tmp_path / "precious").read_bytes() == OURS


def test_place_that_is_no_folder(export: Callable[..., Answer], out: Path) -> None:
    """A file in the folder's place is left alone."""
    out.write_text("mine")
    answer = export()
    assert (answer.code, answer.err) == (ExitCode.NO_DIRECTORY, f"otel-torchdist: {out}: Not a directory\n")
    assert out.read_text() == "mine"
    out.unlink()


@pytest.mark.parametrize("before", [False, True])
def test_interrupted(out: Path, before: bool) -> None:
    """Ctrl-C while dumps are written leaves the folder as it was: missing, or with the earlier export."""
    if before:
        write_dumps(out, [(0, OURS)])

    def dumps() -> Iterator[tuple[int, bytes]]:
        yield 0, b"new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_dumps(out, dumps())
    assert out.exists() == before
    assert not before or [path.read_bytes() for path in out.iterdir()] == [OURS]


def test_no_room(base: Path, run: None, out: Path) -> None:
    """If a file cannot be written whole, there is one line, its exit code, and no file."""
    done = subprocess.run(
        ["bash", "-c", 'ulimit -f 1; exec "$@"', "-", SCRIPT, "export", "--flight-recorder", out],
        env=environment(base),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (ExitCode.NO_DIRECTORY, "")
    assert done.stderr == f"otel-torchdist: {out}: File too large\n"
    assert not out.exists()
