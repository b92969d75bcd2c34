"""A process watched for its end, and the record of that end."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from otel_torchdist.model.rank_state.lives import Death, Stopped
from otel_torchdist.node.job.runs.lives import write_death
from otel_torchdist.node.processes.state import survives_sigterm
from otel_torchdist.tape.identity import TapeIdentity, process_start_ticks

_logger = logging.getLogger("otel_torchdist")


@dataclass(slots=True)
class WatchedProcess:
    """The writer of a tape, watched for its end.

    Attributes:
        tape: Path of the tape.
        identity: Identity on the tape.
        owner: Owner of the open tape. The path may lead to another user's file at any later moment.
        pidfd: A pidfd of the process; -1 if there is none.
        lock: Descriptor of the tape if there is no pidfd; -1 otherwise.
        oom_counter: File that counts out-of-memory kills in the process's cgroup; None if there is none.
        launcher: Name of the parent process.
        survives_sigterm: Whether SIGTERM would not have ended the process, as of the last check.
        error_file: torchelastic's file for the exception that ends the process; None if it has none.
        stopped: Why the process did not run at the last check; None if it ran.
        ran_ns: Last time at which the process ran without a heartbeat; 0 for never.
        death: The end of the process; None while it lives.
        is_published: Whether `death` is complete enough for readers: it has a cause, or will get none.
        was_gone: Whether the process had already ended at the first check.
    """

    tape: Path
    identity: TapeIdentity
    owner: int
    pidfd: int = -1
    lock: int = -1
    oom_counter: Path | None = None
    launcher: str = ""
    survives_sigterm: bool = False
    error_file: Path | None = None
    stopped: Stopped | None = None
    ran_ns: int = 0
    death: Death | None = None
    is_published: bool = False
    was_gone: bool = False

    def close(self) -> None:
        """Close the descriptors."""
        for file in (self.pidfd, self.lock):
            if file >= 0:
                os.close(file)
        self.pidfd = self.lock = -1

    def update_survives_sigterm(self) -> None:
        """Update `survives_sigterm`, while the process exists."""
        pid = self.identity.pid
        outlives = survives_sigterm(pid)
        if outlives is not None and process_start_ticks(pid) == self.identity.pid_start_ticks:
            self.survives_sigterm = outlives

    def mark_ended(self, at_ns: int, resolution_ns: int) -> None:
        """Record the end of the process; the cause is not known yet.

        Args:
            at_ns: Monotonic time at which the end was seen.
            resolution_ns: Maximum delay from the end to that time.
        """
        if self.pidfd >= 0:
            self.update_survives_sigterm()  # /proc shows signal handlers of a zombie too
        stopped = self.stopped
        self.death = Death(
            at_ns,
            resolution_ns,
            stopped=stopped.state if stopped is not None else "",
            stopped_since_ns=stopped.since_ns if stopped is not None else 0,
            ran_ns=self.ran_ns,
            survives_sigterm=self.survives_sigterm,
            launcher=self.launcher,
        )

    def record(self) -> None:
        """Write the death file beside the tape, if the process has ended."""
        if self.death is None:
            return
        try:
            write_death(self.tape, self.death, self.owner)
        except OSError as error:
            _logger.debug("%s: the end of its process cannot be recorded: %s", self.tape, error)
