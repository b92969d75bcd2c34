"""Which library records: a good one, and for all others one warning with the reason, and Python records."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from otel_torchdist.cli.app import app
from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.config import CaptureKernel
from otel_torchdist.model.kinds import Kernel
from otel_torchdist.native.library import chosen_library, library_name
from tests.support.launch.jobs import Jobs
from tests.support.launch.quiet import QUIET
from tests.support.launch.warm_python import WarmPython
from tests.support.native.native_library import native_cache

NAME = library_name(torch.__version__)
TAIL = ": recording in Python, which takes longer (OTEL_PYTHON_TORCHDIST_CAPTURE)"
STRANGER = 12_345
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user, or mount")


LOG = "otel_torchdist"


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of this user's libraries, which is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "otel-torchdist" / "native"
    folder.mkdir(parents=True, mode=0o755)
    return folder


@pytest.fixture
def library(cache: Path) -> Path:
    """A good library in that folder."""
    return Path(shutil.copy(native_cache() / "otel-torchdist" / "native" / NAME, cache))


def warning_of(caplog: pytest.LogCaptureFixture, kernel: CaptureKernel = CaptureKernel.AUTO) -> str:
    """The only warning, without its tail, as the library is chosen and refused."""
    assert chosen_library(kernel) is None
    [record] = caplog.records
    message = record.getMessage()
    assert (record.levelname, message.endswith(TAIL), "\n" in message) == ("WARNING", True, False)
    return message.removesuffix(TAIL)


def test_none_is_there(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By default Python records, and a line at INFO says so; if the library was asked for, it is a warning."""
    with caplog.at_level(logging.INFO, LOG):
        assert chosen_library(CaptureKernel.AUTO) is None
    [record] = caplog.records
    assert record.levelname == "INFO"
    assert record.message.startswith(f"recording in Python: there is no native library for torch {torch.__version__}")
    caplog.clear()
    message = warning_of(caplog, CaptureKernel.NATIVE)
    assert message.startswith(f"there is no native library for torch {torch.__version__} on ")
    assert message.endswith("; `otel-torchdist build-native` builds one")


def test_it_fits(library: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is used, and the log says so; with `python` it is left alone."""
    with caplog.at_level(logging.INFO, LOG):
        assert chosen_library(CaptureKernel.PYTHON) is None
        assert chosen_library(CaptureKernel.AUTO) is not None
    assert caplog.messages == [f"recording natively, with {library}"]


def test_it_is_no_library(library: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A library that the dynamic linker refuses costs one warning with its reason."""
    library.write_bytes(b"not a library at all, " * 100)
    assert warning_of(caplog).startswith(f"{library} cannot be loaded")


def test_it_is_for_another_torch(
    library: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that was renamed, or is left from before torch was upgraded, is not used."""
    renamed = library.rename(library.with_name(library_name("2.99.0")))
    built_for = torch.__version__
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    assert warning_of(caplog) == f"{renamed} is for torch {built_for.partition('+')[0]}, and this is torch 2.99.0"


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.5, 0.999])
def test_truncated(library: Path, caplog: pytest.LogCaptureFixture, share: float) -> None:
    """Cut off anywhere it is not loaded: the dynamic linker would access what is missing, which ends the process."""
    os.truncate(library, int(library.stat().st_size * share))
    assert warning_of(caplog) == f"{library} is truncated"


@pytest.mark.parametrize("level", range(4))
def test_others_can_write(library: Path, caplog: pytest.LogCaptureFixture, level: int) -> None:
    """Neither the file nor any folder above it, below this user's own, may be writable by others."""
    place = [library, *library.parents][level]
    place.chmod(0o777)
    assert warning_of(caplog) == f"{library} may be another user's: others can write to {place}"


def test_folder_in_which_nobody_can_replace_it(library: Path) -> None:
    """A folder such as /tmp, in which others can make files and not replace ours, may be above it."""
    library.parents[2].chmod(0o1777)
    assert chosen_library(CaptureKernel.AUTO) is not None


@only_root
@pytest.mark.parametrize("level", range(4))
def test_of_another_user(library: Path, caplog: pytest.LogCaptureFixture, level: int) -> None:
    """So is what another user owns, who can change it at any moment."""
    place = [library, *library.parents][level]
    os.chown(place, STRANGER, -1)
    assert warning_of(caplog) == f"{library} may be another user's: {place} belongs to user {STRANGER}"


@only_root
def test_of_a_group(library: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A group that may write is others, unless it is the group that this user alone has."""
    library.chmod(0o775)
    assert chosen_library(CaptureKernel.AUTO) is not None
    os.chown(library, -1, STRANGER)
    assert warning_of(caplog) == f"{library} may be another user's: others can write to {library}"


@only_root
def test_link_into_a_folder_of_another_user(library: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """The target of a link, and the folders on the way, count as much as the folder of the link."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, STRANGER, -1)
    library.rename(theirs / NAME)
    library.symlink_to(Path("..") / ".." / "theirs" / NAME)
    assert warning_of(caplog) == f"{library} may be another user's: {theirs} belongs to user {STRANGER}"


def test_folder_that_cannot_be_read(library: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A folder that is closed to this user is reported, and does not switch recording off."""
    with closed_folder(library.parent):
        assert warning_of(caplog) == f"{library} cannot be read: Permission denied"


@contextlib.contextmanager
def closed_folder(folder: Path) -> Iterator[None]:
    """Close a folder to this process, which gives up being root for that."""
    is_root = os.geteuid() == 0
    folder.chmod(0)
    if is_root:
        os.seteuid(STRANGER)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        folder.chmod(0o755)


@only_root
def test_user_without_a_home(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then there is no folder of libraries: Python records, with a warning only if the library was asked for."""
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    os.setreuid(STRANGER, 0)
    try:
        assert chosen_library(CaptureKernel.AUTO) is None
        assert not caplog.records
        assert warning_of(caplog, CaptureKernel.NATIVE).startswith("there is no native library for torch ")
    finally:
        os.setreuid(0, 0)


def test_of_another_version_of_ours(library: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """A library with another interface is recognised by its number, before anything else of it is called."""
    source = tmp_path / "older.c"
    source.write_text("int otd_abi(void) { return 1; }\n")
    subprocess.run([os.environ.get("CXX", "g++"), "-xc", "-shared", "-fPIC", source, "-o", library], check=True)
    assert warning_of(caplog) == f"{library} is of another version of otel_torchdist"


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """Mount a file system in memory on a folder; skips where that is forbidden."""
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)  # a library that is loaded keeps it in use


@only_root
def test_dlopen_is_forbidden(library: Path, caplog: pytest.LogCaptureFixture) -> None:
    """On a file system from which nothing may be executed, the reason is the dynamic linker's."""
    content = library.read_bytes()
    with mounted(library.parent, "noexec,mode=755"):
        library.write_bytes(content)
        library.chmod(0o755)
        message = warning_of(caplog)
    assert message.startswith(f"{library} cannot be loaded: ")
    assert "failed to map segment" in message


@only_root
def test_cache_that_is_read_only(library: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A library there is used; that another cannot be built there, `build-native` says in a line."""
    content = library.read_bytes()
    with mounted(library.parent, "mode=755"):
        library.write_bytes(content)
        subprocess.run(["mount", "-o", "remount,ro", library.parent], check=True)
        assert chosen_library(CaptureKernel.AUTO) is not None
        assert not caplog.records
        answer = CliRunner().invoke(app, ["build-native"])
    assert answer.exit_code == ExitCode.NOT_WRITTEN
    assert re.fullmatch(r"otel-torchdist: \S+ cannot be written to: Read-only file system\n", answer.stderr)


def use_compiler(monkeypatch: pytest.MonkeyPatch, folder: Path, output: str) -> None:
    """Let a script stand in for the compiler, which takes half a minute: whatever it makes is a command's output."""
    compiler = folder / "compiler"
    compiler.write_text(f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nexec {output} > "$2"\n', encoding="utf-8")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))


@only_root
def test_no_space_to_build(library: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The reason is in what is reported, nothing is left behind, and the library that was there is still whole."""
    use_compiler(monkeypatch, tmp_path, "head -c 1000000 /dev/zero")
    content = library.read_bytes()
    with mounted(library.parent, "size=512k,mode=755"):
        library.write_bytes(content)
        answer = CliRunner().invoke(app, ["build-native"])
        assert [*library.parent.iterdir()] == [library]
        assert library.read_bytes() == content
    assert answer.exit_code == ExitCode.NOT_WRITTEN
    assert "No space left on device" in answer.stderr


def test_built_where_others_can_write(library: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`build-native` says at once that what it has built would not be used; into a folder of the user's it may."""
    use_compiler(monkeypatch, tmp_path, f"cat {native_cache() / 'otel-torchdist' / 'native' / NAME}")
    library.unlink()
    library.parent.chmod(0o777)
    answer = CliRunner().invoke(app, ["build-native"])
    assert answer.exit_code == ExitCode.NOT_BUILT
    assert answer.stderr == (
        f"otel-torchdist: {library} was built, but would not be used: it may be another user's: "
        f"others can write to {library.parent}\n"
    )
    library.parent.chmod(0o755)
    assert CliRunner().invoke(app, ["build-native"]).exit_code == 0
    assert library.stat().st_mode & 0o777 == 0o755


@pytest.fixture(scope="module")
def jobs(warm_python: WarmPython) -> Iterator[Jobs]:
    """Runs jobs that look for a library."""
    jobs = Jobs(warm_python, Path(__file__).parents[2] / "capture" / "workers")
    yield jobs
    jobs.clean_up()


def cut(library: Path) -> None:
    """Truncate it."""
    os.truncate(library, 100_000)


def open_to_all(library: Path) -> None:
    """Let others write to it."""
    library.chmod(0o777)


@pytest.mark.parametrize("spoil", [cut, open_to_all])
def test_training_is_unharmed(jobs: Jobs, library: Path, spoil: Callable[[Path], None]) -> None:
    """One warning for a process, whatever it creates; the result is the same, and Python records all of it."""
    spoil(library)
    cache = str(library.parents[2])
    job = jobs.run("plain", 1, "0", environ={**QUIET, "XDG_CACHE_HOME": cache, "OTEL_PYTHON_TORCHDIST_CAPTURE": "auto"})
    [warning] = job.ranks[0].err.splitlines()
    assert warning.startswith(str(library))
    assert warning.endswith(TAIL)
    assert job.ranks[0].line()["result"] == [1.0, 1.0, 1.0]
    assert [tape.identity.kernel for tape in job.tapes] == [Kernel.PYTHON] * 2
    assert [tape.only("all_reduce").has_ended for tape in job.tapes] == [True, True]
