"""Runs `otel-torchdist` as people do, and finds its leftovers."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from otel_torchdist.sources.evidence.texts.py_spy import program

SCRIPT = Path(sys.executable).with_name("otel-torchdist")
BOOT = b"otel_torchdist.agent.launch.background"


class Running:
    """A running command, in its own session; its output is collected."""

    def __init__(self, base: Path, *arguments: str | Path, environ: dict[str, str] | None = None) -> None:
        """Start the command.

        Args:
            base: Its base directory for tapes.
            *arguments: Arguments of `otel-torchdist`.
            environ: Additions to the environment.
        """
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [str(SCRIPT), *map(str, arguments)],
            env={**environment(base), **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._texts = {"out": "", "err": ""}
        self._threads = [
            threading.Thread(target=self._collect, args=(name, pipe), daemon=True)
            for name, pipe in (("out", self.process.stdout), ("err", self.process.stderr))
        ]
        for thread in self._threads:
            thread.start()

    def _collect(self, name: str, pipe: Iterator[str]) -> None:
        for line in pipe:
            self._texts[name] += line

    @property
    def out(self) -> str:
        """Its standard output so far."""
        return self._texts["out"]

    @property
    def err(self) -> str:
        """Its standard error so far."""
        return self._texts["err"]

    def wait_for(self, pattern: str, timeout_s: float = 120.0) -> re.Match[str]:
        """The first match of a pattern in its output; fails if it ends or takes too long before that."""
        deadline = time.monotonic() + timeout_s
        while (found := re.search(pattern, self.out, re.MULTILINE)) is None:
            if self.process.poll() is not None:
                self.end()  # with its last output
                found = re.search(pattern, self.out, re.MULTILINE)
                assert found is not None, self.story()
                return found
            assert time.monotonic() < deadline, self.story()
            time.sleep(0.02)
        return found

    def end(self, timeout_s: float = 60.0) -> int:
        """Wait until it exits by itself; returns its exit code."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end\n{self.story()}") from None
        for thread in self._threads:
            thread.join(10)
        return code

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to its process group, as a terminal does."""
        os.killpg(self.process.pid, number)

    def story(self) -> str:
        """All its output, for assertion messages."""
        return f"exit code {self.process.returncode}\n{self.out}\n{self.err}"

    def close(self) -> None:
        """Kill it if it is still running."""
        self.process.kill()
        self.end()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


def environment(base: Path) -> dict[str, str]:
    """This process's environment, with tapes below `base` and `/metrics` on any free port."""
    return {
        **os.environ,
        "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(base),
        "OTEL_EXPORTER_PROMETHEUS_HOST": "127.0.0.1",
        "OTEL_EXPORTER_PROMETHEUS_PORT": "0",
        "COLUMNS": "100",
    }


def processes_of(base: Path) -> list[int]:
    """Processes, of any session or parent, that were started with this base directory in their environment."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            has_it = str(base).encode() in (entry / "environ").read_bytes()
            is_zombie = ") Z " in (entry / "stat").read_text()
        except OSError:
            continue
        if has_it and not is_zombie:
            found.append(int(entry.name))
    return found


def kill_processes_of(base: Path) -> None:
    """Kill these processes."""
    for pid in processes_of(base):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def stacks_of(pids: Iterable[int]) -> str:
    """The stacks of processes, to show why what a test waits for does not come."""
    py_spy = program()
    if py_spy is None:
        return "py-spy is not installed"
    dumps = [
        subprocess.run([py_spy, "dump", "--pid", str(pid)], capture_output=True, text=True, timeout=60) for pid in pids
    ]
    return "\n".join(done.stdout or done.stderr for done in dumps)


def is_agent(pid: int) -> bool:
    """Whether a process is an agent that ranks have started."""
    try:
        return BOOT in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
