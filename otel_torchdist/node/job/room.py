"""Limits the size of a tape, when a rank creates it, and removes leftovers if space is scarce.

In a container `/dev/shm` has 64 MB by default, and DataLoader workers need it: they die of SIGBUS when it is full. Live
tapes may fill one eighth of it, and leftovers of ended runs another eighth (see `leftovers.clean_up`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_torchdist.model.names import MAX_BYTES
from otel_torchdist.node.job.directory import SPACE_DIVISOR
from otel_torchdist.tape import layout

if TYPE_CHECKING:
    from otel_torchdist.node.job.leftovers import LiveFiles


_JOBS_IN_LARGE: Final = 8
"""A file system is large if one eighth of it holds the tapes of eight jobs like this one."""
MIN_RECORDS: Final = 512
"""Minimum records of a ring, however small the file system is: fewer would show too little of a stall."""
MIN_NAMES: Final = 64 << 10
"""Minimum size of a dictionary in bytes."""
_NAMES_SHARE: Final = 4
"""If space is scarce, a quarter of a tape's share is for the dictionary."""
_MAX_LOCAL_RANKS: Final = 16
"""Assumed maximum number of ranks on a node if no launcher states it."""
_LOCAL_SIZE_VARIABLES: Final = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


class TapeLimits(NamedTuple):
    """The size limits of one tape.

    Attributes:
        records: Records in its ring buffer.
        names_bytes: Maximum size of its dictionary in bytes.
        filesystem_bytes: Size of the file system; 0 if unknown.
    """

    records: int
    names_bytes: int
    filesystem_bytes: int


def tape_limits(directory: Path, records: int, ranks: int) -> TapeLimits:
    """Return the size limits of another tape in a job directory.

    In a large file system with enough free space, other jobs' tapes need not be measured: one `statvfs` call suffices.

    Args:
        directory: The job directory.
        records: The configured number of records.
        ranks: Number of the job's ranks on this node.
    """
    wanted_bytes = layout.tape_size(records) + MAX_BYTES
    try:
        info = os.statvfs(directory)
        total, free = info.f_blocks * info.f_frsize, info.f_bavail * info.f_frsize
        if not total or (
            total // SPACE_DIVISOR >= _JOBS_IN_LARGE * ranks * wanted_bytes and free >= total // SPACE_DIVISOR
        ):
            return TapeLimits(records, MAX_BYTES, total)
        live = _live_beside(directory)
    except OSError:
        return TapeLimits(records, MAX_BYTES, 0)
    # Other programs may have filled the file system: use at most half of the free space.
    share = max(min(total // SPACE_DIVISOR - live.size, free // 2), 0) // max(
        1, ranks - live.tapes_in.get(directory, 0)
    )
    if share >= wanted_bytes:
        return TapeLimits(records, MAX_BYTES, total)
    fitting_records = (share - share // _NAMES_SHARE - layout.RING_OFFSET) // layout.RECORD_SIZE
    records = min(records, max(fitting_records, MIN_RECORDS))
    names = min(MAX_BYTES, max(share - layout.tape_size(records), MIN_NAMES))
    return TapeLimits(records, names, total)


def is_scarce(directory: Path) -> bool:
    """Return whether less than an eighth of the file system is free."""
    info = os.statvfs(directory)
    return info.f_bavail < info.f_blocks // SPACE_DIVISOR


def _live_beside(directory: Path) -> LiveFiles:
    from otel_torchdist.node.job.leftovers import find_live  # imported late, because few ranks need it

    return find_live(directory.parent)


def ranks_of_node(environ: Mapping[str, str], world_size: int) -> int:
    """Return the number of the job's ranks on this node, from its launcher; an upper bound if unknown."""
    for name in _LOCAL_SIZE_VARIABLES:
        text = environ.get(name, "")
        if text.isascii() and text.isdecimal() and int(text):
            return min(int(text), world_size)
    return min(world_size, _MAX_LOCAL_RANKS)


# --- cleaning up ------------------------------------------------------------------------------------------------------
# Decides which process removes the leftovers of ended runs, and when.
# Cleaning up takes longer the more leftovers there are. So the agent does it, not a rank that is starting: a rank
# cleans up only if no agent of its user does, or if the file system is nearly full.


TAPES_BETWEEN: Final = 16
"""New tapes per clean-up. A program that initializes torch.distributed repeatedly leaves a tape each time."""


class Cleaning:
    """Cleans up a base directory at its first new tape, and then at every sixteenth."""

    def __init__(self, keep_runs: int, keep_bytes: int) -> None:
        """Set the limits; see `clean_up`."""
        self._keep_runs = keep_runs
        self._keep_bytes = keep_bytes
        self._until_next: dict[Path, int] = {}

    def tapes_added(self, base: Path, tapes: int = 1) -> None:
        """Count new tapes, and clean up if that is due.

        Args:
            base: The base directory.
            tapes: Number of new tapes.
        """
        left = self._until_next.get(base, 0) - tapes
        if left < 0:
            left = TAPES_BETWEEN - 1
            self.now(base)
        self._until_next[base] = left

    def now(self, base: Path) -> None:
        """Clean up now."""
        from otel_torchdist.node.job.leftovers import clean_up  # imported late, because few ranks need it

        clean_up(base, self._keep_runs, self._keep_bytes)


class RankCleaning(Cleaning):
    """A rank's part in cleaning up: all of it without an agent, else only if space is scarce."""

    def __init__(self, keep_runs: int, keep_bytes: int, has_agent: bool) -> None:
        """Set the limits.

        Args:
            keep_runs: See `clean_up`.
            keep_bytes: See `clean_up`.
            has_agent: Whether this process keeps an agent running, which cleans up.
        """
        super().__init__(keep_runs, keep_bytes)
        self._has_agent = has_agent

    def before_tape(self, base: Path) -> None:
        """Clean up before a tape is created, if space is scarce, or if this process has no agent and it is due."""
        if is_scarce(base):
            self.now(base)
        elif not self._has_agent:
            self.tapes_added(base)

    def take_over(self, base: Path) -> None:
        """Take over cleaning up, because no agent of this user reads the job."""
        if self._has_agent:
            self._has_agent = False
            self.tapes_added(base)
