"""Jobs of one release: ranks as processes with real tapes, without torch, and what their agent leaves."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.ranks.job_ranks import RANK_PROCESS
from tests.support.ranks.rank_process import RUN
from tests.versions.releases import Release

RANKS = 2
JOB = "job-00000000000000aa"


@contextlib.contextmanager
def ranks_of(release: Release, base: Path, calls: int = 3) -> Iterator[Path]:
    """Ranks that have made some calls and then wait; yields their job directory. They end with the block."""
    directory = base / JOB
    directory.mkdir(mode=0o700)
    with contextlib.ExitStack() as stack:
        ranks: list[subprocess.Popen[str]] = []
        for rank in range(RANKS):
            command = [sys.executable, RANK_PROCESS, directory, *map(str, (rank, RANKS, 64, RUN))]
            environ = release.environment(OTEL_PYTHON_TORCHDIST_TAPE_DIR=str(base))
            process = subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            ranks.append(stack.enter_context(process))
        for process in ranks:
            stack.callback(process.kill)
            _tell(process, "")
            _tell(process, f"many {calls}\n")
        yield directory
        for process in ranks:
            if process.stdin is not None:
                process.stdin.write("exit\n")
                process.stdin.close()
            assert process.wait(60) == 0


def _tell(process: subprocess.Popen[str], command: str) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(command)
    process.stdin.flush()
    assert process.stdout.readline() == "ok\n"


@contextlib.contextmanager
def agent_of(release: Release, base: Path, *arguments: str | Path, **settings: str) -> Iterator[Path]:
    """An agent that a user starts; yields the file with its output. It ends with the block."""
    output = base.parent / f"agent-{time.monotonic_ns()}.log"
    environ = release.environment(**agents_settings(base), **settings)
    with output.open("w") as file:
        agent = subprocess.Popen(release.command("agent", *arguments), env=environ, cwd="/", stdout=file, stderr=file)
    try:
        yield output
        agent.terminate()
        assert agent.wait(60) == 0, output.read_text()
    finally:
        agent.kill()
        agent.wait(60)


def agents_settings(base: Path) -> dict[str, str]:
    """Settings of an agent that sends nothing."""
    return {
        "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(base),
        "OTEL_EXPORTER_PROMETHEUS_HOST": "127.0.0.1",
        "OTEL_EXPORTER_PROMETHEUS_PORT": "0",
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
    }


@dataclass(frozen=True)
class Leftovers:
    """What a job has left.

    Attributes:
        base: Its base directory.
        directory: Its job directory.
        archive: Its archive.
        bundle: Its bundle of evidence.
    """

    base: Path
    directory: Path
    archive: Path
    bundle: Path


def finished_job(release: Release, base: Path, folder: Path) -> Leftovers:
    """Run a job under an agent of the same release to its end.

    Args:
        release: The release.
        base: An empty base directory in memory.
        folder: An empty folder.
    """
    archive, bundles = folder / "archive", folder / "bundles"
    settings = {"OTEL_PYTHON_TORCHDIST_ARCHIVE": str(archive), "OTEL_PYTHON_TORCHDIST_BUNDLES": str(bundles)}
    with ranks_of(release, base) as directory:
        pass
    done = release.ask("agent", "--run-dir", directory, "--keep", "0", **agents_settings(base), **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    bundle = next(bundles.glob("*.tar.gz"), None)
    if bundle is None:
        raise AssertionError(f"no bundle\n{done.stdout}{done.stderr}")
    return Leftovers(base, directory, archive, bundle)
