"""An assistant reads the directories that it was given and nothing else, by whatever path it asks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from otel_torchdist.cli.mcp import roots as module
from otel_torchdist.cli.mcp.questions import (
    AnalyzeQuestion,
    DiagnoseQuestion,
    ListRunsQuestion,
    ReportQuestion,
    StacksQuestion,
)
from otel_torchdist.cli.mcp.roots import ReadableRoots
from otel_torchdist.cli.mcp.targets import RunTargets
from otel_torchdist.cli.mcp.tools import tools_for
from otel_torchdist.config import Config
from otel_torchdist.errors import RunError
from otel_torchdist.formats import ARCHIVE
from otel_torchdist.model.kinds import RecordKind, RunIdState
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.sources.archive.format import MAGIC, MAGIC_START
from tests.sources.flight.made_dumps import late_rank, write
from tests.support.repository import REPOSITORY
from tests.support.tapes.directories import key
from tests.support.tapes.fake_tape import PAIR, RUN, SECOND, FakeTape

OUTSIDE = "outside the directories that this server may read"


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    """A directory that may be read, with dumps; a secret lies beside it."""
    write(tmp_path / "inside" / "dumps", late_rank(3, 2))
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "job.log").write_text("[rank0]: RuntimeError: the password is 1234\n")
    return tmp_path / "inside"


@pytest.fixture
def call(inside: Path) -> Callable[[str, str], object]:
    """Calls a tool with a path; every tool goes through the same checks."""
    config = Config.from_environment()
    tools = tools_for(RunTargets(ReadableRoots([inside], config), config), may_ask=True)

    def called(tool: str, path: str) -> object:
        more = {"ranks": [0]} if tool == "stacks" else {}
        return tools[tool].call({"path": path, **more})

    return called


def test_every_tool_with_a_path_is_tested() -> None:
    """A new tool must be added below."""
    config = Config.from_environment()
    tools = tools_for(RunTargets(ReadableRoots([], config), config), may_ask=False)
    assert {tool.question for tool in tools.values()} == {
        AnalyzeQuestion,
        DiagnoseQuestion,
        ListRunsQuestion,
        ReportQuestion,
        StacksQuestion,
    }


@pytest.mark.parametrize("tool", ["list_runs", "diagnose", "analyze", "stacks", "read_report"])
def test_paths_outside(tool: str, call: Callable[[str, str], object], inside: Path) -> None:
    """Other directories, `..`, links, and paths that do not exist are refused alike, and their names tell nothing."""
    (inside / "link").symlink_to(inside.parent / "secret")
    (inside / "file.log").symlink_to(inside.parent / "secret" / "job.log")
    (inside / "loop").symlink_to("loop")
    for path in (
        inside.parent / "secret",
        inside / ".." / "secret" / "job.log",
        inside / "dumps" / ".." / ".." / "secret",
        inside / "link",
        inside / "link" / "job.log",
        inside / "file.log",
        inside / "loop",
        inside.parent / "inside-too",
        inside.parent / "missing",
        "/etc/passwd",
        "/proc/self/environ",
        "/",
    ):
        with pytest.raises(RunError, match=OUTSIDE) as error:
            call(tool, str(path))
        assert "password" not in str(error.value)


@pytest.mark.parametrize("tool", ["list_runs", "diagnose", "analyze", "stacks", "read_report"])
@pytest.mark.parametrize("path", ["", "dumps", "../secret", "~", "~root", "dumps\0/etc/passwd", "/tmp\0"])
def test_relative_paths(tool: str, path: str, call: Callable[[str, str], object], inside: Path) -> None:
    """Relative paths, homes and bytes of zero are refused, wherever this process runs."""
    before = Path.cwd()
    os.chdir(inside)
    try:
        with pytest.raises(RunError, match="an absolute path is needed"):
            call(tool, path)
    finally:
        os.chdir(before)


@pytest.mark.parametrize("tool", ["list_runs", "diagnose", "analyze", "stacks"])
def test_links_within_a_folder(tool: str, call: Callable[[str, str], object], inside: Path) -> None:
    """A folder with a link that leads out is refused as a whole: readers of dumps and logs follow links."""
    (inside / "dumps" / "deep").mkdir()
    link = inside / "dumps" / "deep" / "job.log"
    link.symlink_to("../../../secret/job.log")
    for path in (inside / "dumps", inside):
        with pytest.raises(RunError, match=f"{link}: a link; it is {OUTSIDE}"):
            call(tool, str(path))


def test_links_that_stay_inside(call: Callable[[str, str], object], inside: Path) -> None:
    """Links to readable files work; the same file is then read under its own name."""
    (inside / "again").symlink_to(inside / "dumps")
    assert "rank 2" in str(call("diagnose", str(inside / "again")))


def test_root_behind_a_link(inside: Path) -> None:
    """A directory that is itself named by a link is the directory that the link led to at the start."""
    link = inside.parent / "current"
    link.symlink_to(inside)
    config = Config.from_environment()
    roots = ReadableRoots([link], config)
    link.unlink()
    link.symlink_to(inside.parent / "secret")
    assert roots.directories() == (inside,)
    with pytest.raises(RunError, match=OUTSIDE):
        roots.checked(str(link / "job.log"))


def test_name_that_json_cannot_have(inside: Path) -> None:
    """A bundle whose name is not UTF-8 is left out, and does not hide the others."""
    (inside / "torchdist-bundle-good.tar.gz").touch()
    (inside / os.fsdecode(b"torchdist-bundle-\xe9.tar.gz")).touch()
    config = Config.from_environment()
    answer = tools_for(RunTargets(ReadableRoots([inside], config), config), may_ask=False)["list_runs"].call({})
    assert answer["bundles"] == [str(inside / "torchdist-bundle-good.tar.gz")]


def test_too_many_files(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder in which not all files can be checked is refused."""
    monkeypatch.setattr(module, "MAX_ENTRIES", 2)
    with pytest.raises(RunError, match="more than 2 files: name a part of it"):
        ReadableRoots([inside], Config.from_environment()).checked(str(inside))


def test_usual_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a choice they are those of the settings; a link in place of the directory for dumps does not count."""
    names = {"TAPE_DIR": "tapes", "ARCHIVE": "archive", "BUNDLES": "bundles", "DUMP_DIR": "dumps"}
    for name, folder in names.items():
        (tmp_path / folder).mkdir(mode=0o700)
        monkeypatch.setenv(f"OTEL_PYTHON_TORCHDIST_{name}", str(tmp_path / folder))
    roots = ReadableRoots([], Config.from_environment())
    assert roots.directories() == tuple(tmp_path / folder for folder in names.values())
    (tmp_path / "dumps").rmdir()
    (tmp_path / "dumps").symlink_to("/etc")
    assert roots.directories() == tuple(tmp_path / folder for folder in ("tapes", "archive", "bundles"))


def test_root_of_one_job(tmp_path: Path) -> None:
    """A root that is one job directory does not lead to the other parts of its launch, which lie beside it."""
    launch = replace(PAIR, backend="")
    line = CallSiteName("main", "/home/u/train.py", 7)
    at = time.monotonic_ns() - 20 * SECOND
    folders = [tmp_path / key(number) for number in (1, 2)]
    for rank, folder in enumerate(folders):
        folder.mkdir(mode=0o700)
        tape = FakeTape(folder, rank, 2, state=RunIdState.NONE, capacity=64)
        name = replace(launch, address=f"127.0.0.1:{29500 + rank}")
        tape.begin("init_process_group", name, at=at, kind=RecordKind.RENDEZVOUS, call_site=line)
        tape.die()
    config = Config.from_environment()

    def ranks_below(root: Path) -> list[int]:
        tools = tools_for(RunTargets(ReadableRoots([root], config), config), may_ask=False)
        answer = tools["diagnose"].call({"path": str(folders[0])})
        return sorted(rank["rank"] for rank in answer["diagnosis"]["ranks"])

    assert ranks_below(tmp_path) == [0, 1]
    assert ranks_below(folders[0]) == [0]


def test_archive_of_another_version(tmp_path: Path) -> None:
    """An archive that cannot be read hides no run elsewhere: it becomes a warning, also where there is no run."""
    archive, tapes = tmp_path / "archive", tmp_path / "tapes"
    tapes.mkdir(mode=0o700)
    archive.mkdir()
    kept = REPOSITORY / "tests" / "versions" / "data" / "archive-1" / "0.segments"
    content = kept.read_bytes()
    (archive / kept.name).write_bytes(MAGIC_START + bytes([ARCHIVE.number + 1]) + content[len(MAGIC) :])
    config = Config.from_environment()
    tools = tools_for(RunTargets(ReadableRoots([archive, tapes], config), config), may_ask=False)
    refusal = f"archive format {ARCHIVE.number + 1}"
    with pytest.raises(RunError, match="no run has left a tape here") as error:
        tools["diagnose"].call({})
    assert refusal in str(error.value.warnings)
    (tapes / key(1)).mkdir(mode=0o700)
    FakeTape(tapes / key(1), 0, 1, capacity=64).die()
    listed = tools["list_runs"].call({})
    assert [run["id"][:8] for run in listed["runs"]] == [RUN]
    assert refusal in str(listed["warnings"])
