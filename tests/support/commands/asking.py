"""Runs a command that answers and exits: in this process, because starting another takes most of a second each time."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from otel_torchdist.cli.app import app
from tests.support.commands.running import SCRIPT, environment
from tests.support.schemas import DIAGNOSE, valid


@dataclass(frozen=True)
class Answer:
    """Output of a command.

    Attributes:
        code: Its exit code.
        out: Its standard output.
        err: Its standard error.
    """

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """Its JSON output. A diagnosis fits its schema, whichever test asks for it."""
        document = json.loads(self.out)
        return valid(document, DIAGNOSE) if "threshold_s" in document else document

    def has(self, pattern: str) -> bool:
        """Whether a line of its output matches."""
        return re.search(f"^{pattern}$", self.out, re.MULTILINE) is not None


def ask(
    base: Path, *arguments: str | Path, command: str = "diagnose", threshold_s: float = 1.0, **environ: str
) -> Answer:
    """Run a command here; this process must not write any tape that it reads.

    Args:
        base: The base directory of tapes.
        *arguments: Arguments of the command.
        command: Its name.
        threshold_s: The age at which operations count as stalled.
        **environ: Additions to its environment.
    """
    threshold = {"OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": str(round(threshold_s * 1000))}
    variables = {**environment(base), **threshold, **environ}
    done = CliRunner().invoke(app, [command, *map(str, arguments)], env=variables, catch_exceptions=False)
    return Answer(done.exit_code, done.stdout, done.stderr)


def analyze(base: Path, *arguments: str | Path, only: str = "", threshold_s: float = 1.0, **environ: str) -> Answer:
    """Run `otel-torchdist analyze` here, for one part of it or for all."""
    chosen = ["--only", only] if only else []
    return ask(base, *chosen, *arguments, command="analyze", threshold_s=threshold_s, **environ)


def ask_as_on_page(base: Path, line: str, threshold_s: float = 1.0) -> Answer:
    """Run a command here as a page shows it, for a shell; redirected output is written to the file."""
    program, command, *arguments = shlex.split(line, comments=True)
    assert program == "otel-torchdist", line
    files: list[str] = []
    if ">" in arguments:
        _, *files = arguments[arguments.index(">") :]
        del arguments[arguments.index(">") :]
    answer = ask(base, *arguments, command=command, threshold_s=threshold_s)
    for file in files:
        Path(file).write_text(answer.out)
    return answer


def ask_as_people_do(base: Path, *arguments: str | Path, **environ: str) -> Answer:
    """Run the console script, as people do."""
    done = subprocess.run(
        [str(SCRIPT), *map(str, arguments)],
        env={**environment(base), **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Answer(done.returncode, done.stdout, done.stderr)
