"""How many tapes an agent may have open: each takes a descriptor, and one user's must not take those of the others."""

from __future__ import annotations

import contextlib
import os
import resource
from collections import Counter
from collections.abc import Iterable
from typing import Final

from otel_torchdist.tape.reader import TapeReader

MAX_DESCRIPTORS: Final = 65_536
MAX_TAPES_OF_USER: Final = 1024
_RESERVE: Final = 32
_SHARE_KEPT: Final = 8
"""An eighth, and no fewer than 32, stays free: for files that are opened for a moment, and for who scrapes."""


class Allowance:
    """Counts what each user's tapes take."""

    def __init__(self) -> None:
        """Nothing is open yet."""
        self._open: Counter[int] = Counter()

    def count(self, tapes: Iterable[TapeReader]) -> None:
        """Look at the tapes that are open."""
        self._open = Counter(tape.owner for tape in tapes)

    def room_for(self, user: int) -> int:
        """How many more tapes of a user may be opened: of another user at most half of all, and of all what is left."""
        limit = _soft_limit()
        most = limit - max(_RESERVE, limit // _SHARE_KEPT)
        left = most - self._open.total()
        if user == os.geteuid():
            return max(left, 0)
        return max(min(left, min(most // 2, MAX_TAPES_OF_USER) - self._open[user]), 0)


def raise_limit() -> None:
    """Have as many descriptors as this process is allowed to; the usual 1,024 are for programs that use `select`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _soft_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else min(soft, MAX_DESCRIPTORS)
