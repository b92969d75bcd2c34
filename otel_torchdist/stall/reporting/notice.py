"""The few lines on the job's standard error that tell people of a stall or a crash."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final, Protocol

from otel_torchdist.naming import readable, run_label
from otel_torchdist.stall.events import VerdictGiven

PREFIX: Final = "otel_torchdist: "
MAX_SENTENCE: Final = 2_500
MAX_COMMAND: Final = 1_200
MAX_HOST: Final = 256
"""Bytes of a text. All lines together must fit into PIPE_BUF, 4,096 bytes: a pipe takes these whole or not."""


class Announcer(Protocol):
    """Announces verdicts where the people are who run the job."""

    @property
    def is_announcing(self) -> bool:
        """Whether a verdict is still to be announced."""
        ...

    def announce(self, event: VerdictGiven, text: str) -> bool:
        """Announce a verdict; returns whether it has been announced, or will be by the log of a rank.

        Args:
            event: The first verdict on an incident.
            text: The verdict as a sentence.
        """
        ...


def notice_lines(text: str, run: int, directory: Path, host: str = "") -> list[str]:
    """Return the lines of a notice, without their ends.

    Args:
        text: The verdict as a sentence.
        run: The run's id; 0 if it is not known.
        directory: The job directory.
        host: Where that directory is, if the job has several hosts.
    """
    command = shlex.join(filter(None, ["otel-torchdist", "diagnose", run_label(run), "--run-dir", str(directory)]))
    where = f" (on {_cut(host, MAX_HOST)})" if host else ""
    return [f"{PREFIX}{_cut(text, MAX_SENTENCE)}", f"{PREFIX}details: {_cut(command, MAX_COMMAND)}{where}"]


def _cut(text: str, most: int) -> str:
    return readable(text).encode()[:most].decode(errors="ignore")
