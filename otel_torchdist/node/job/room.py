"""How much room a tape may take, which a rank decides when it creates one.

In a container `/dev/shm` has 64 MB by default, and DataLoader workers need it: they die of SIGBUS when it is full. An
eighth is for the tapes of running ranks, and an eighth for the leftovers of ended runs (see `leftovers.clean_up`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_torchdist.model.names import MAX_BYTES
from otel_torchdist.node.job.directory import SHARE
from otel_torchdist.tape import layout

if TYPE_CHECKING:
    from otel_torchdist.node.job.leftovers import Live


_JOBS_IN_LARGE: Final = 8
"""A file system is large if an eighth of it holds the tapes of eight jobs like the one at hand."""
MIN_RECORDS: Final = 512
"""Fewer would show too little of a stall, however small the file system is."""
MIN_NAMES: Final = 64 << 10
_NAMES_SHARE: Final = 4
"""If room is scarce, a quarter of it is for the dictionary."""
_MOST_LOCAL_RANKS: Final = 16
"""Assumed maximum number of ranks on a node if no launcher states it."""
_LOCAL_SIZE_VARIABLES: Final = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


class Room(NamedTuple):
    """The room for one tape.

    Attributes:
        records: Records in its ring.
        names_bytes: Maximum size of its dictionary.
        filesystem_bytes: Size of the file system.
    """

    records: int
    names_bytes: int
    filesystem_bytes: int


def find_room(directory: Path, wanted: int, ranks: int) -> Room:
    """Find the room for one more tape in a job directory.

    In a large file system nobody has to look at the tapes of others: one call says that there is room.

    Args:
        directory: The job directory.
        wanted: The configured number of records in its ring.
        ranks: Ranks of the job on this node.
    """
    needed = layout.tape_size(wanted) + MAX_BYTES
    try:
        facts = os.statvfs(directory)
        whole, free = facts.f_blocks * facts.f_frsize, facts.f_bavail * facts.f_frsize
        if not whole or (whole // SHARE >= _JOBS_IN_LARGE * ranks * needed and free >= whole // SHARE):
            return Room(wanted, MAX_BYTES, whole)
        live = _live_beside(directory)
    except OSError:
        return Room(wanted, MAX_BYTES, 0)
    # Others may have filled the file system: then half of what is still free.
    share = max(min(whole // SHARE - live.size, free // 2), 0) // max(1, ranks - live.tapes_in.get(directory, 0))
    if share >= needed:
        return Room(wanted, MAX_BYTES, whole)
    records = (share - share // _NAMES_SHARE - layout.RING_OFFSET) // layout.RECORD_SIZE
    records = min(wanted, max(records, MIN_RECORDS))
    names = min(MAX_BYTES, max(share - layout.tape_size(records), MIN_NAMES))
    return Room(records, names, whole)


def is_scarce(directory: Path) -> bool:
    """Return whether less than an eighth of the file system is free."""
    facts = os.statvfs(directory)
    return facts.f_bavail < facts.f_blocks // SHARE


def _live_beside(directory: Path) -> Live:
    from otel_torchdist.node.job.leftovers import find_live  # not imported before: few ranks need it

    return find_live(directory.parent)


def ranks_of_node(environ: Mapping[str, str], world_size: int) -> int:
    """Return the number of the job's ranks on this node: from its launcher, else an upper bound."""
    for name in _LOCAL_SIZE_VARIABLES:
        text = environ.get(name, "")
        if text.isascii() and text.isdecimal() and int(text):
            return min(int(text), world_size)
    return min(world_size, _MOST_LOCAL_RANKS)


# --- cleaning up ------------------------------------------------------------------------------------------------------
# Who removes the leftovers of ended runs, and when.
# The more other jobs have left, the longer it takes. So the agent does it, and a rank starts without looking at other
# jobs: it cleans up only if no agent of its user does, or if the file system is nearly full.


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
        from otel_torchdist.node.job.leftovers import clean_up  # not imported before: few ranks need it

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
