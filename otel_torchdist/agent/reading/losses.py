"""Warns of records that are lost while a tape is read."""

from __future__ import annotations

import logging
from typing import Final

from otel_torchdist.agent.reading.followed_rank import FollowedRank
from otel_torchdist.tape.reading.batch import Batch

MANY_LOST: Final = 64
"""Records of one turn that are worth a warning: damage, or a thread that died, loses single ones."""
LOST: Final = (
    "rank %d records operations faster than they can be read: %d records were not read, and later ones will not be "
    "either. Their operations have no spans, and are missing in counters of operations, bytes and durations; they are "
    "counted in torchdist_records_lost_total. Operations that do not end, and so stalls, are seen all the same"
)
REFUSED: Final = (
    "%s: records are left out that no rank of this version writes, because their kind is unknown or a number in them "
    "is impossible; they are counted in torchdist_records_lost_total"
)

_logger = logging.getLogger("otel_torchdist")


class LossLog:
    """Warns once of each user's losses, so that a forged tape of one user hides no loss of another."""

    def __init__(self) -> None:
        self._behind: set[int] = set()
        self._refused: set[int] = set()

    def note(self, rank: FollowedRank, batch: Batch) -> None:
        """Warn if records were lost; what was overwritten before the first poll is no surprise."""
        tape = rank.tape
        missed = batch.lost - batch.refused
        if missed >= MANY_LOST and rank.has_been_read and tape.owner not in self._behind:
            self._behind.add(tape.owner)
            _logger.warning(LOST, tape.identity.rank, missed)
        if batch.refused and tape.owner not in self._refused:
            self._refused.add(tape.owner)
            _logger.warning(REFUSED, tape.path)
        rank.has_been_read = True
