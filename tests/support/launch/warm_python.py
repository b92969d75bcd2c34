"""Runs scripts in processes forked from an interpreter that has imported torch already."""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.launch.stderr import without_leak_report
from tests.support.launch.warm_link import Link, link_to_own, link_to_shared

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
    """Starts the interpreter at the first use; any thread may start processes."""

    def __init__(self, *imports: str, environ: Mapping[str, str] | None = None, shared_in: Path | None = None) -> None:
        """Set up; the interpreter is started at the first use.

        Args:
            *imports: Modules that an interpreter of our own imports too.
            environ: Additions to its environment, and to that of no process.
            shared_in: The folder of an interpreter that several processes share; None for one of our own.
        """
        self._imports = imports
        self._environ = environ or {}
        self._shared_in = shared_in
        self._link: Link | None = None
        self._asking = threading.Lock()
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
        number = next(self._numbers)
        pids, codes = self._asked[number, "pids"], self._asked[number, "codes"] = Future(), Future()
        job = {"number": number, "argv": [str(script), *arguments], "processes": processes, "timeout_s": timeout_s}
        with self._asking:
            link = self._link or self._start()
            link.asks.write(json.dumps(job) + "\n")
            link.asks.flush()
        return WarmJob(pids.result(ANSWERED_S), codes, files)

    def _read(self) -> None:
        assert self._link is not None
        for line in self._link.answers:
            answer = json.loads(line)
            [kind] = answer.keys() - {"number"}
            self._asked.pop((answer["number"], kind)).set_result(answer[kind])

    def _start(self) -> Link:
        folder = self._shared_in
        link = link_to_shared(folder) if folder is not None else link_to_own(self._imports, self._environ)
        self._link = link
        self._reader.start()
        return link

    def close(self) -> None:
        """End the interpreter, once its jobs have ended, unless others use it."""
        if self._link is not None:
            self._link.end()
            self._reader.join()
            self._link.answers.close()
