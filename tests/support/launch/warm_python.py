"""Runs scripts in processes forked from an interpreter that has imported torch already."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.launch.forked_ranks import PADDING, ROOM
from tests.support.launch.stderr import without_leak_report
from tests.support.repository import REPOSITORY

FORKER = Path(__file__).with_name("warm_interpreter.py")
ANSWERED_S = 60.0


@dataclass(frozen=True)
class Done:
    """A process that has ended.

    Attributes:
        code: Exit code, minus the signal's number if a signal ended it; None if it took too long.
        out: What it wrote to its standard output.
        err: What it wrote to its standard error.
    """

    code: int | None
    out: str
    err: str

    def lines(self) -> list[Any]:
        """The lines of JSON on its standard output; gloo writes there too in some versions of torch."""
        return [json.loads(line) for line in self.out.splitlines() if line.startswith("{")]

    def line(self) -> Any:
        """The only line."""
        [only] = self.lines()
        return only


@dataclass(frozen=True)
class WarmJob:
    """Processes that run a script at the same time.

    Attributes:
        pids: Their ids.
        codes: Their exit codes, once all have ended.
        files: Their standard outputs and errors.
    """

    pids: list[int]
    codes: Future[list[int | None]]
    files: list[tuple[Path, Path]]

    def wait(self, timeout_s: float | None = None) -> list[Done]:
        """Wait until all have ended.

        Raises:
            TimeoutError: They have not within that time.
        """
        return [
            Done(code, out.read_text(), without_leak_report(err.read_text()))
            for code, (out, err) in zip(self.codes.result(timeout_s), self.files, strict=True)
        ]


class WarmPython:
    """Starts the interpreter at the first use."""

    def __init__(self, *imports: str, environ: Mapping[str, str] | None = None) -> None:
        """Set up; the interpreter is started at the first use.

        Args:
            *imports: Modules that the interpreter imports too.
            environ: Additions to the environment of the interpreter, and of no process.
        """
        self._imports = imports
        self._environ = environ or {}
        self._process: subprocess.Popen[str] | None = None
        self._numbers = itertools.count()
        self._asked: dict[tuple[int, str], Future[list[Any]]] = {}
        self._reader = threading.Thread(target=self._read)

    def run(
        self,
        script: Path,
        environs: Sequence[Mapping[str, str]],
        folder: Path,
        arguments: Sequence[str] = (),
        timeout_s: float = 60.0,
    ) -> list[Done]:
        """Run a script to its end; see `start`."""
        return self.start(script, environs, folder, arguments, timeout_s).wait()

    def start(
        self,
        script: Path,
        environs: Sequence[Mapping[str, str]],
        folder: Path,
        arguments: Sequence[str] = (),
        timeout_s: float = 60.0,
    ) -> WarmJob:
        """Start a script, once for each environment, at the same time.

        Args:
            script: The script.
            environs: Additions to the environment of each process.
            folder: Where outputs go, one job's at a time.
            arguments: Arguments of all processes.
            timeout_s: How long they may take.
        """
        files = [(folder / f"out-{index}", folder / f"err-{index}") for index in range(len(environs))]
        for out, err in files:
            out.write_text("")
            err.write_text("")
        processes = [
            {"environ": {**os.environ, **environ}, "out": str(out), "err": str(err)}
            for environ, (out, err) in zip(environs, files, strict=True)
        ]
        process = self._process or self._start()
        assert process.stdin is not None
        number = next(self._numbers)
        pids, codes = self._asked[number, "pids"], self._asked[number, "codes"] = Future(), Future()
        job = {"number": number, "argv": [str(script), *arguments], "processes": processes, "timeout_s": timeout_s}
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        return WarmJob(pids.result(ANSWERED_S), codes, files)

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            [kind] = answer.keys() - {"number"}
            self._asked.pop((answer["number"], kind)).set_result(answer[kind])

    def _start(self) -> subprocess.Popen[str]:
        paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
        environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            # The entry point has to wait for the first group in every forked process, whose own environment then
            # decides.
            "OTEL_PYTHON_TORCHDIST_ENABLED": "true",
            PADDING: ROOM,
            **self._environ,
        }
        process = subprocess.Popen(
            [sys.executable, "-X", f"padding={ROOM}", str(FORKER), *self._imports],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        self._process = process
        self._reader.start()
        return process

    def close(self) -> None:
        """End the interpreter, once its jobs have ended."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        assert process.wait(60) == 0
        self._reader.join()
        process.stdout.close()
