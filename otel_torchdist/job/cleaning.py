"""Who removes the leftovers of ended runs, and when.

The more other jobs have left, the longer it takes. So the agent does it, and a rank starts without looking at other
jobs: it cleans up only if no agent of its user does, or if the file system is nearly full.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from otel_torchdist.job.room import is_scarce

TAPES_BETWEEN: Final = 16
"""A program that initializes again and again leaves a tape each time."""


class Cleaning:
    """Cleans up base directories as tapes are added: at the first one in each, and then at every sixteenth."""

    def __init__(self, keep_runs: int, keep_bytes: int) -> None:
        """Initialize with the bounds; see `clean_up`."""
        self._keep_runs = keep_runs
        self._keep_bytes = keep_bytes
        self._until_next: dict[Path, int] = {}

    def tapes_added(self, base: Path, tapes: int = 1) -> None:
        """Clean up if it is due.

        Args:
            base: The base directory.
            tapes: Number of tapes that have been added, or are about to be.
        """
        left = self._until_next.get(base, 0) - tapes
        if left < 0:
            left = TAPES_BETWEEN - 1
            self.now(base)
        self._until_next[base] = left

    def now(self, base: Path) -> None:
        """Clean up."""
        from otel_torchdist.job.leftovers import clean_up  # not imported before: few ranks need it

        clean_up(base, self._keep_runs, self._keep_bytes)


class RankCleaning(Cleaning):
    """The part of a rank in cleaning up: everything without an agent, else only what is urgent."""

    def __init__(self, keep_runs: int, keep_bytes: int, has_agent: bool) -> None:
        """Initialize with the bounds; see `clean_up`.

        Args:
            keep_runs: As for `clean_up`.
            keep_bytes: As for `clean_up`.
            has_agent: Whether this process keeps an agent running, which cleans up.
        """
        super().__init__(keep_runs, keep_bytes)
        self._has_agent = has_agent

    def before_tape(self, base: Path) -> None:
        """Clean up before a tape is created, if that is left to this process and due, or if space is scarce."""
        if is_scarce(base):
            self.now(base)
        elif not self._has_agent:
            self.tapes_added(base)

    def has_no_agent(self, base: Path) -> None:
        """Clean up from now on: no agent of this user reads the job."""
        if self._has_agent:
            self._has_agent = False
            self.tapes_added(base)
