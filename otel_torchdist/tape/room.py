"""How much of a file system tapes may take.

In a container `/dev/shm` has 64 MB by default, and DataLoader workers need them: they die of SIGBUS when it is full.
An eighth is for the tapes of ranks that run, and an eighth for what ended runs have left (see `directory.clean_up`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.tape import layout
from otel_torchdist.tape.leftovers import find_live
from otel_torchdist.tape.names import MAX_BYTES

SHARE: Final = 8
"""What runs and what is left over take one part each in so many."""
MIN_RECORDS: Final = 512
"""Fewer would say too little of a stall, however small the file system is."""
MIN_NAMES: Final = 64 << 10
_NAMES_SHARE: Final = 4
"""Where room is scarce, one part in so many is for the dictionary."""
_MOST_LOCAL_RANKS: Final = 16
"""On a node, where no launcher says how many there are."""
_LOCAL_SIZE_VARIABLES: Final = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


@dataclass(frozen=True, slots=True)
class Room:
    """What one tape may take.

    Attributes:
        records: Records in its ring.
        names_bytes: Bytes of its dictionary.
        filesystem_bytes: Size of the file system.
    """

    records: int
    names_bytes: int
    filesystem_bytes: int


def find_room(directory: Path, wanted: int, ranks: int) -> Room:
    """The room for one more tape in a job directory.

    Args:
        directory: The job directory.
        wanted: Records that the user wants in its ring.
        ranks: Ranks of the job on this node.
    """
    try:
        facts = os.statvfs(directory)
        live = find_live(directory.parent)
    except OSError:
        return Room(wanted, MAX_BYTES, 0)
    whole = facts.f_blocks * facts.f_frsize
    # Others may have filled it: then half of what they have left.
    free = min(whole // SHARE - live.size, facts.f_bavail * facts.f_frsize // 2)
    share = max(free, 0) // max(1, ranks - live.tapes_in.get(directory, 0))
    if not whole or share >= layout.tape_size(wanted) + MAX_BYTES:
        return Room(wanted, MAX_BYTES, whole)
    records = (share - share // _NAMES_SHARE - layout.RING_OFFSET) // layout.RECORD_SIZE
    records = min(wanted, max(records, MIN_RECORDS))
    names = min(MAX_BYTES, max(share - layout.tape_size(records), MIN_NAMES))
    return Room(records, names, whole)


def ranks_of_node(environ: Mapping[str, str], world_size: int) -> int:
    """How many ranks of the job are on this node: as its launcher says, else at most all of them."""
    for name in _LOCAL_SIZE_VARIABLES:
        text = environ.get(name, "")
        if text.isascii() and text.isdecimal() and int(text):
            return min(int(text), world_size)
    return min(world_size, _MOST_LOCAL_RANKS)
