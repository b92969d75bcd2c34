"""Profiles of a rank's child processes: sampled by py-spy if installed, else observed through the kernel."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from otel_torchdist.model.text import readable
from otel_torchdist.node.processes.children import ChildView, children_of, inspect_child
from otel_torchdist.sources.evidence.live_ranks import command_of
from otel_torchdist.sources.evidence.texts.py_spy import program

MAX_SAMPLED: Final = 16
"""Upper bound on children sampled at once; each needs a py-spy process."""
PY_SPY_TIMEOUT_S: Final = 5.0
"""Time for py-spy to write its file after the last sample."""
MAX_STACK_BYTES: Final = 16 << 20
MAX_COMMAND: Final = 80
"""Characters of a command line in the report."""


@dataclass(frozen=True, slots=True)
class ChildProfile:
    """The profile of a child process.

    Attributes:
        command: Its command line, shortened.
        doing: Number of observations of each state, as the kernel shows it: `in read of /data/train.bin`.
        stacks: Folded stacks, as py-spy writes them; empty without py-spy.
        why_not: Reason why `stacks` is empty although py-spy was started.
    """

    pid: int
    command: str
    doing: Counter[str]
    stacks: tuple[str, ...] = ()
    why_not: str = ""


@dataclass(slots=True)
class Children:
    """Observes the children of a rank while the rank is profiled."""

    pid: int
    seconds: float
    rate: int
    _doing: dict[int, Counter[str]] = field(default_factory=dict[int, Counter[str]])
    _commands: dict[int, str] = field(default_factory=dict[int, str])
    _py_spies: dict[int, tuple[subprocess.Popen[bytes], Path]] = field(
        default_factory=dict[int, tuple[subprocess.Popen[bytes], Path]]
    )
    _folder: tempfile.TemporaryDirectory[str] | None = None

    def begin(self) -> None:
        """Start py-spy for each child, if installed."""
        path = program()
        children = children_of(self.pid)
        if path is None or not children:
            return
        self._folder = tempfile.TemporaryDirectory(prefix="otel-torchdist-profile-")
        for child in children[:MAX_SAMPLED]:
            out = Path(self._folder.name) / str(child)
            command = [
                path,
                "record",
                "--nonblocking",
                "--idle",
                "--format",
                "raw",
                "--output",
                str(out),
                "--pid",
                str(child),
            ]
            command += ["--rate", str(self.rate), "--duration", str(max(round(self.seconds), 1))]
            with contextlib.suppress(OSError):
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
                )
                self._py_spies[child] = (process, out)

    def observe(self) -> None:
        """Record the current state of each child."""
        for child in children_of(self.pid):
            view: ChildView | None = inspect_child(child)
            if view is not None:
                self._doing.setdefault(child, Counter())[view.doing] += 1
                self._commands.setdefault(child, command_of(child)[:MAX_COMMAND])

    def end(self) -> list[ChildProfile]:
        """Return the profiles of all children, in the order of their start."""
        try:
            return [self._of(child) for child in self._doing]
        finally:
            for process, _ in self._py_spies.values():
                process.kill()
                process.wait()
            if self._folder is not None:
                self._folder.cleanup()

    def _of(self, child: int) -> ChildProfile:
        py_spy = self._py_spies.get(child)
        stacks, why_not = _result(*py_spy) if py_spy is not None else ((), "")
        return ChildProfile(child, self._commands[child], self._doing[child], stacks, why_not)


def _result(process: subprocess.Popen[bytes], out: Path) -> tuple[tuple[str, ...], str]:
    try:
        _, error = process.communicate(timeout=PY_SPY_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return (), f"py-spy did not end within {PY_SPY_TIMEOUT_S:g} s"
    try:
        with open(out, encoding="utf-8", errors="replace") as stream:
            lines = stream.read(MAX_STACK_BYTES).splitlines()
    except OSError:
        lines = []
    if lines:
        return tuple(readable(line) for line in lines), ""
    first_line = error.decode("utf-8", "replace").strip().partition("\n")[0]
    return (), f"py-spy: {readable(first_line, 200) or 'no stacks'}"
