"""One process whose end is awaited, and what is known of that end."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from otel_torchdist.model.lives import Death, Stopped
from otel_torchdist.node.job.runs.lives import write_death
from otel_torchdist.node.processes.state import outlives_request
from otel_torchdist.tape.identity import TapeIdentity, process_start_ticks

_logger = logging.getLogger("otel_torchdist")


@dataclass(slots=True)
class WatchedProcess:
    """The process that writes a tape, and what is known of its end.

    Attributes:
        tape: The path of its tape.
        identity: Its identity.
        owner: Its owner, as seen on the open tape: its path may lead to another user's at any later moment.
        pidfd: A pidfd of the process; -1 if there is none.
        lock: Descriptor of its tape if there is no pidfd; -1 otherwise.
        counter: Counter of out-of-memory kills in its cgroup.
        launcher: The name of its parent process.
        outlives_request: Whether SIGTERM would not have ended it, as of the last check.
        error_file: torchelastic's file for the exception that ends it; None if it has none.
        stopped: How it was prevented from running at the last check.
        ran_ns: When it was last seen to run without a heartbeat; 0 for never.
        death: What is known of its end.
        is_published: Whether others learn of its end: they get the cause with it.
        was_gone: Whether it had already ended at the first check.
    """

    tape: Path
    identity: TapeIdentity
    owner: int
    pidfd: int = -1
    lock: int = -1
    counter: Path | None = None
    launcher: str = ""
    outlives_request: bool = False
    error_file: Path | None = None
    stopped: Stopped | None = None
    ran_ns: int = 0
    death: Death | None = None
    is_published: bool = False
    was_gone: bool = False

    def close(self) -> None:
        """Close its descriptors."""
        for file in (self.pidfd, self.lock):
            if file >= 0:
                os.close(file)
        self.pidfd = self.lock = -1

    def note_handler(self) -> None:
        """Note whether SIGTERM would end it, as long as it is there."""
        pid = self.identity.pid
        shown = outlives_request(pid)
        if shown is not None and process_start_ticks(pid) == self.identity.pid_start_ticks:
            self.outlives_request = shown

    def has_ended(self, at_ns: int, resolution_ns: int) -> None:
        """Note that it has ended; how is not known yet.

        Args:
            at_ns: When that was seen.
            resolution_ns: How much later than its end that may be.
        """
        if self.pidfd >= 0:
            self.note_handler()  # a zombie still shows it
        stopped = self.stopped
        self.death = Death(
            at_ns,
            resolution_ns,
            stopped=stopped.state if stopped is not None else "",
            stopped_since_ns=stopped.since_ns if stopped is not None else 0,
            ran_ns=self.ran_ns,
            outlives_request=self.outlives_request,
            launcher=self.launcher,
        )

    def record(self) -> None:
        """Write its death beside its tape, if it has ended."""
        if self.death is None:
            return
        try:
            write_death(self.tape, self.death, self.owner)
        except OSError as error:
            _logger.debug("%s: the end of its process cannot be recorded: %s", self.tape, error)
