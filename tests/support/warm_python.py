"""Runs scripts in processes forked from an interpreter that has imported torch already."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.stderr import without_leak_report

REPOSITORY = Path(__file__).parents[2]
FORKER = Path(__file__).with_name("warm_interpreter.py")


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


class WarmPython:
    """Starts the interpreter at the first use."""

    def __init__(self, *imports: str) -> None:
        """Set up; the interpreter is started at the first use.

        Args:
            *imports: Modules that the interpreter imports too.
        """
        self._imports = imports
        self._process: subprocess.Popen[str] | None = None

    def run(
        self,
        script: Path,
        environs: Sequence[Mapping[str, str]],
        folder: Path,
        arguments: Sequence[str] = (),
        timeout_s: float = 60.0,
    ) -> list[Done]:
        """Run a script, once for each environment, at the same time.

        Args:
            script: The script.
            environs: Additions to the environment of each process.
            folder: Where outputs go.
            arguments: Arguments of all processes.
            timeout_s: How long they may take.
        """  # fmt: skip
        files = [(folder / f"out-{index}", folder / f"err-{index}") for index in range(len(environs))]
        for out, err in files:
            out.write_text("")
            err.write_text("")
        processes = [
            {"environ": {**os.environ, **environ}, "out": str(out), "err": str(err)}
            for environ, (out, err) in zip(environs, files, strict=True)
        ]
        argv = [str(script), *arguments]
        codes = self._ask({"argv": argv, "processes": processes, "timeout_s": timeout_s})
        return [
            Done(code, out.read_text(), without_leak_report(err.read_text()))
            for code, (out, err) in zip(codes, files, strict=True)
        ]

    def _ask(self, job: dict[str, Any]) -> list[int | None]:
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    def _start(self) -> subprocess.Popen[str]:
        paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
        environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            # The entry point has to wait for the first group in every forked process, whose own environment then
            # decides.
            "OTEL_PYTHON_TORCHDIST_ENABLED": "true",
        }
        process = subprocess.Popen(
            [sys.executable, str(FORKER), *self._imports],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        self._process = process
        return process

    def close(self) -> None:
        """End the interpreter."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        assert process.wait(30) == 0
        process.stdout.close()
