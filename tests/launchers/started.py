"""A job as its users start it: a launcher's command, whose output they read."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

import pytest

from tests.support.commands.running import SCRIPT, is_agent, kill_processes_of, processes_of
from tests.support.repository import REPOSITORY
from tests.support.waiting import until

EXAMPLES: Final = REPOSITORY / "examples"
PYTHON: Final = sys.executable
PATIENCE_S: Final = 150.0
"""A rank takes up to a minute to import its libraries on a loaded machine."""
ENDS_S: Final = 60.0
NOTICE: Final = "otel_torchdist: "
_OF_PYTEST: Final = "PYTEST_CURRENT_TEST"
"""A kernel of Jupyter that has it does not pass what is written to its standard error on to the notebook."""
_DETAILS: Final = f"{NOTICE}details: "


def program(name: str) -> str:
    """Return the path of a program of this environment, or of the system; skip if there is none, and fail in CI."""
    here = Path(PYTHON).with_name(name)
    for folder in (here.parent, *map(Path, os.environ["PATH"].split(os.pathsep))):
        if (folder / name).is_file():
            return str(folder / name)
    missing = f"needs {name}"
    if os.environ.get("CI"):
        pytest.fail(missing)
    pytest.skip(missing)


def needs(module: str) -> None:
    """Skip the test if a library is not installed, and fail it in CI."""
    if importlib.util.find_spec(module) is not None:
        return
    if os.environ.get("CI"):
        pytest.fail(f"needs {module}: make test-all installs it")
    pytest.skip(f"needs {module}")


def line_of(file: Path, text: str) -> str:
    """Return the place of a line as sentences name it: `train.py:27`."""
    lines = file.read_text().splitlines()
    return f"{file.name}:{next(number for number, line in enumerate(lines, 1) if text in line)}"


class StartedJob:
    """A launcher and its ranks, in a session of their own; output and errors go to one pipe, as in a batch system.

    Attributes:
        base: Its base directory for tapes.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        base: Path,
        endpoint: str,
        protocol: str,
        environ: Mapping[str, str],
        cwd: Path,
    ) -> None:
        """Start the launcher, with recording switched on and the addresses that a test needs."""
        self.base = base
        added = {
            "OTEL_PYTHON_TORCHDIST_ENABLED": "true",
            "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(base),
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_EXPORTER_PROMETHEUS_PORT": "0",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
            "PATH": f"{Path(PYTHON).parent}{os.pathsep}{os.environ['PATH']}",
        }
        variables = {**os.environ, **added, **environ}
        self.process = subprocess.Popen(
            [str(word) for word in command],
            env={name: value for name, value in variables.items() if name != _OF_PYTEST},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._output = b""
        assert self.process.stdout is not None
        self._pipe: IO[bytes] = self.process.stdout
        self._thread = threading.Thread(target=self._collect, daemon=True)
        self._thread.start()

    def _collect(self) -> None:
        while chunk := os.read(self._pipe.fileno(), 65_536):
            self._output += chunk

    @property
    def output(self) -> str:
        """What launcher and ranks have printed so far."""
        return self._output.decode(errors="replace")

    @property
    def notices(self) -> list[str]:
        """The verdicts in the output, without what a launcher puts before each line."""
        lines = [line[line.index(NOTICE) :] for line in self.output.splitlines() if NOTICE in line]
        return [line.removeprefix(NOTICE) for line in lines if not line.startswith(_DETAILS)]

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Return the first match of a pattern in the output."""
        return until(lambda: re.search(pattern, self.output, re.MULTILINE), PATIENCE_S, lambda: self.output)

    def wait_for_notice(self) -> str:
        """Return the first verdict in the output."""
        return until(lambda: self.notices, PATIENCE_S, lambda: self.output)[0]

    def end(self) -> int:
        """Return the exit code, once the launcher has ended and no process has its output open any more."""
        code = self.process.wait(PATIENCE_S)
        self._thread.join(ENDS_S)
        assert not self._thread.is_alive(), f"a process keeps the output open: {processes_of(self.base)}"
        return code

    @property
    def agents(self) -> list[int]:
        """Process ids of its agents."""
        return [pid for pid in processes_of(self.base) if is_agent(pid)]

    def diagnose(self, *arguments: str) -> str:
        """Return the output of `diagnose`, which must find the run by itself."""
        environ = {**os.environ, "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(self.base), "COLUMNS": "1000"}
        done = subprocess.run(
            [SCRIPT, "diagnose", *arguments], env=environ, capture_output=True, text=True, timeout=PATIENCE_S
        )
        return done.stdout + done.stderr

    def close(self) -> None:
        """Kill everything that is left."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        kill_processes_of(self.base)
        self.process.wait(ENDS_S)
        self._thread.join(ENDS_S)
        self._pipe.close()


def assert_hang_is_shown(job: StartedJob, late_line: str) -> None:
    """Check the verdict on a rank 1 that is too late, in the output and in `diagnose`.

    It must be the first verdict: none is given on the start of the job, and none on a healthy operation.
    """
    notice = job.wait_for_notice()
    assert notice.startswith("rank 1 has not entered all_reduce ("), job.output
    assert late_line in notice
    assert "1 of 2 ranks waits in " in notice
    diagnosed = job.diagnose()
    assert "2 of 2 ranks report" in diagnosed
    verdict = next(line for line in diagnosed.splitlines() if line.startswith("verdict "))
    assert verdict.split()[1:6] == notice.split()[:5], diagnosed
    assert late_line in verdict


def assert_job_goes_on(job: StartedJob) -> None:
    """Check that a late job ends as if nothing had happened, with one verdict, and is known to have finished."""
    assert job.end() == 0, job.output
    assert len(job.notices) == 1, job.output
    assert "ranks 0-1 have finished" in job.diagnose()


def assert_failure_is_shown(job: StartedJob, failing_line: str, launcher_waits: bool = True) -> None:
    """Check the verdict on a rank 1 that has failed, and whose failure has ended the job.

    Args:
        job: The job.
        failing_line: Place of the line that raises.
        launcher_waits: Whether the launcher waits for the verdict. If not, the output may be closed before.
    """
    assert job.end() != 0, job.output
    diagnosed = job.diagnose()
    assert "verdict  rank 1 ended with ValueError" in diagnosed, diagnosed
    assert failing_line in diagnosed
    assert len(job.notices) == 1 or not (job.notices or launcher_waits), job.output
    assert all(notice.startswith("rank 1 ended with ValueError") for notice in job.notices), job.output
