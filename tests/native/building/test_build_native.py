"""`otel-torchdist build-native`: what it leaves, whatever happens to it.

Where a compiler only has to be slow or broken, it is a script, which "compiles" by copying a library built before.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from otel_torchdist.native.library import library_name
from tests.support.commands.running import SCRIPT
from tests.support.launch.warm_python import WarmJob, WarmPython
from tests.support.native.native_library import native_cache
from tests.support.waiting import until

Start = Callable[..., WarmJob]
NAME = library_name(torch.__version__)
COMPILER = """#!/bin/sh
echo "$$" >> {started}
{compiling}
while [ "$1" != -o ]; do shift; done
cp {library} "$2"
"""
HOUR_S = 3600


def compiler(folder: Path, compiling: str = ":") -> Path:
    """A script that does as a compiler; `folder/started` counts its processes."""
    script = folder / "compiler"
    library = native_cache() / "otel-torchdist" / "native" / NAME
    script.write_text(COMPILER.format(started=folder / "started", library=library, compiling=compiling))
    script.chmod(stat.S_IRWXU)
    return script


@pytest.fixture
def start(warm_python: WarmPython, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Starts the command in a process that has imported torch, for the version of which it imports it."""

    def start(to: Path, **environ: str) -> WarmJob:
        return warm_python.start(
            SCRIPT, [environ], tmp_path_factory.mktemp("output"), ["build-native", "--to", str(to)], timeout_s=150
        )

    return start


def outcome(running: WarmJob) -> tuple[int | None, str]:
    """Its exit code, and what it has written to stderr."""
    [done] = running.wait()
    return done.code, done.err


def has_started(folder: Path) -> bool:
    """Whether a compiler of that folder runs."""
    return bool((folder / "started").is_file() and (folder / "started").read_text())


def is_running(pid: str) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_killed(start: Start, tmp_path: Path) -> None:
    """A build that is killed leaves no library; a later one removes its scratch folder once that is old."""
    to = tmp_path / "libraries"
    running = start(to, CXX=str(compiler(tmp_path, compiling="exec sleep 20")))
    until(lambda: has_started(tmp_path), 120)
    os.kill(running.pids[0], signal.SIGKILL)
    assert outcome(running)[0] == -signal.SIGKILL
    [scratch] = to.iterdir()
    assert outcome(start(to, CXX=str(compiler(tmp_path)))) == (0, "")
    assert {*to.iterdir()} == {scratch, to / NAME}  # it might still be at work
    long_ago = time.time() - 2 * HOUR_S
    os.utime(scratch, (long_ago, long_ago))
    assert outcome(start(to, CXX=str(compiler(tmp_path)))) == (0, "")
    assert [*to.iterdir()] == [to / NAME]


def test_two_at_once(start: Start, tmp_path: Path) -> None:
    """Both succeed, though each is still compiling when the other begins; one library is there, and it is whole."""
    to = tmp_path / "libraries"
    chosen = str(compiler(tmp_path, f"while [ $(wc -l < {tmp_path}/started) -lt 2 ]; do sleep 0.02; done"))
    both = [start(to, CXX=chosen) for _ in range(2)]
    assert [outcome(one) for one in both] == [(0, ""), (0, "")]
    assert [*to.iterdir()] == [to / NAME]
    assert (to / NAME).read_bytes() == (native_cache() / "otel-torchdist" / "native" / NAME).read_bytes()


def test_interrupted(start: Start, tmp_path: Path) -> None:
    """Ctrl-C ends the compilers too, and nothing is left."""
    to = tmp_path / "libraries"
    running = start(to, CXX=str(compiler(tmp_path, compiling="exec sleep 60")))
    until(lambda: has_started(tmp_path), 120)
    os.kill(running.pids[0], signal.SIGINT)
    assert outcome(running)[0] == 130
    assert not [*to.iterdir()]
    assert not [pid for pid in (tmp_path / "started").read_text().split() if is_running(pid)]


@pytest.mark.parametrize(
    ("compiling", "reason"),
    [
        ("exit 1", "it says nothing"),
        ("echo one; echo 'x.cc:1: error: no'; echo more; exit 1", "x.cc:1: error: no"),
        pytest.param("kill -SEGV $$", "it says nothing", marks=pytest.mark.thorough),
        pytest.param("echo 'ld: error: broken'; exit 1", "ld: error: broken", marks=pytest.mark.thorough),
    ],
)
def test_broken_compiler(start: Start, tmp_path: Path, compiling: str, reason: str) -> None:
    """The sentence has the first error, the exit code is of its own, and nothing is left."""
    to, chosen = tmp_path / "libraries", compiler(tmp_path, compiling)
    code, err = outcome(start(to, CXX=str(chosen)))
    assert (code, err) == (5, f"otel-torchdist: {chosen} cannot compile the library: {reason}\n")
    assert not [*to.iterdir()]


def test_unusable_library(start: Start, tmp_path: Path) -> None:
    """What the compiler has made is tried before it gets its name; one that cannot be loaded is not kept."""
    to = tmp_path / "libraries"
    chosen = compiler(tmp_path, compiling='while [ "$1" != -o ]; do shift; done; echo no > "$2"; exit 0')
    code, err = outcome(start(to, CXX=str(chosen)))
    assert code == 5
    assert "cannot be loaded" in err
    assert err.count("\n") == 1
    assert not [*to.iterdir()]


def test_no_compiler(start: Start, tmp_path: Path) -> None:
    """Without one, or with a CXX that is not there, the exit code is that of a missing package."""
    path = str(tmp_path)
    expected = "otel-torchdist: there is no C++ compiler (g++, clang++, or what CXX names)\n"
    assert outcome(start(tmp_path / "to", CXX="", PATH=path)) == (69, expected)
    expected = "otel-torchdist: there is no C++ compiler absent++, which CXX names\n"
    assert outcome(start(tmp_path / "to", CXX="absent++ -O0")) == (69, expected)
    assert not (tmp_path / "to").exists()


def test_no_torch(tmp_path: Path) -> None:
    """Without torch there is nothing to build for."""
    program = "import sys; sys.modules['torch'] = None; from otel_torchdist.cli import main; main()"
    command = [sys.executable, "-c", program, "build-native", "--to", str(tmp_path / "to")]
    environ = {**os.environ, "CXX": str(compiler(tmp_path))}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (69, "otel-torchdist: torch is not installed\n")


def test_in_a_rank(start: Start, tmp_path: Path) -> None:
    """A rank of a job compiles nothing; that some clusters set RANK for a whole node does not make one of it."""
    code, err = outcome(start(tmp_path / "to", LOCAL_RANK="3", CXX="absent++"))
    expected = "this is a rank of a job (LOCAL_RANK=3), and ranks compile nothing: build before the job starts"
    assert (code, err) == (5, f"otel-torchdist: {expected}\n")
    assert outcome(start(tmp_path / "to", RANK="0", WORLD_SIZE="2", CXX="absent++"))[0] == 69


@pytest.mark.parametrize(
    ("options", "reason"), [("ro", "Read-only file system"), ("size=64k", "No space left on device")]
)
def test_no_place(tmp_path: Path, options: str, reason: str) -> None:
    """A cache that cannot be written to, or is full while this machine's own compiler writes, is one sentence."""
    if not shutil.which("g++"):
        pytest.skip("no g++")
    own = ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else [])]
    mounted = [*own, "sh", "-c", f'mount -t tmpfs -o {options} tmpfs {tmp_path} && exec "$@"', "sh"]
    if not shutil.which("unshare") or subprocess.run([*mounted, "true"], capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here")
    to, script = tmp_path / "libraries", tmp_path.with_name(f"{tmp_path.name}-compiler")
    # It compiles something that is quickly read and does not fit.
    script.write_text("#!/bin/sh\necho 'char large[1 << 20] = {1};' | g++ -x c++ -c - -o $TMPDIR/large.o\n")
    script.chmod(stat.S_IRWXU)
    command = [*mounted, str(SCRIPT), "build-native", "--to", str(to)]
    environ = {**os.environ, "CXX": str(script)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=150, check=False)
    assert (done.returncode, done.stderr) == (74, f"otel-torchdist: {to} cannot be written to: {reason}\n")


def test_architecture_is_in_the_name() -> None:
    """So that one home directory can serve machines of two architectures."""
    assert NAME.endswith(f"-{platform.machine()}.so")
