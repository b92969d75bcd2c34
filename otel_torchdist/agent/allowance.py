"""Limits what an agent has open: job directories and tapes take descriptors, and one user must not use them up."""

from __future__ import annotations

import contextlib
import os
import resource
from collections import Counter
from collections.abc import Iterable
from typing import Final

MAX_DESCRIPTORS: Final = 65_536
MAX_TAPES_OF_USER: Final = 1024
_RESERVE: Final = 32
_SHARE_KEPT: Final = 8
"""An eighth of the descriptors, but at least 32, stays free for files that are opened briefly and for scrapers. With a
limit below 64 half of it stays free, because otherwise a small job would not be read at all."""
_OF_DIRECTORY: Final = 1
"""Descriptors of a job directory: its lock."""
_OF_TAPE: Final = 2
"""Descriptors of a tape: the tape, and the process that writes it."""


class Allowance:
    """Counts the descriptors that each user's job directories and tapes take."""

    def __init__(self) -> None:
        self._tapes: Counter[int] = Counter()
        self._taken: Counter[int] = Counter()

    def count(self, directories: Iterable[tuple[int, int]]) -> None:
        """Update the counts.

        Args:
            directories: The owner of each job directory that is read, and how many of its tapes are open. If none is
                open yet, room for the first is reserved.
        """
        self._tapes.clear()
        self._taken.clear()
        for user, tapes in directories:
            self._tapes[user] += max(tapes, 1)
            self._taken[user] += _OF_DIRECTORY + _OF_TAPE * max(tapes, 1)

    def room_for(self, user: int) -> int:
        """How many more tapes of a user may be opened, out of what is left; other users get at most half of all."""
        return self._room(user, 0)

    def has_room_for_directory(self, user: int) -> bool:
        """Whether one more job directory of a user may be read, with a tape in it."""
        return self._room(user, _OF_DIRECTORY) > 0

    def _room(self, user: int, set_aside: int) -> int:
        limit = _soft_limit()
        most = limit - max(min(_RESERVE, limit // 2), limit // _SHARE_KEPT)
        room = (most - self._taken.total() - set_aside) // _OF_TAPE
        if user != os.geteuid():
            share = (most // 2 - self._taken[user] - set_aside) // _OF_TAPE
            room = min(room, share, MAX_TAPES_OF_USER - self._tapes[user])
        return max(room, 0)


def raise_limit() -> None:
    """Raise the descriptor limit as far as permitted; the usual 1,024 is meant for programs that use `select`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _soft_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else min(soft, MAX_DESCRIPTORS)
