"""Estimates the memory that reading each user's tapes takes here, so that no user's take all of it.

Measured with up to 2,660 names a tape and groups of 3 to 1,024 members, the estimate is 0.8 to 1.6 times what is
allocated. What is kept of a tape grows with its names, the bytes of these beyond a usual name's (members of
groups, shapes), what is open, and its channels; all else is bounded for each tape or for each job.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from typing import Final

from otel_torchdist.tape.reading.reader import TapeReader

MAX_BYTES_OF_USER: Final = 256 << 20
"""Eight ranks with 300 groups of 1,024 members each take 180 MiB, with 64 members each 24 MiB."""
_OF_TAPE: Final = 768 << 10
_OF_NAME: Final = 1_536
_USUAL_NAME: Final = 200
_OF_FURTHER_BYTE: Final = 15
_OF_OPEN: Final = 640
_OF_CHANNEL: Final = 640


def footprint(tape: TapeReader, channels: int) -> int:
    """Estimate the bytes that are kept of a tape.

    Args:
        tape: The tape.
        channels: Channels whose progress is known.
    """
    names, size = tape.names.count, tape.names.bytes_read
    further = max(size - _USUAL_NAME * names, 0)
    kept = _OF_NAME * names + _OF_FURTHER_BYTE * further
    return _OF_TAPE + kept + _OF_OPEN * tape.open_count + _OF_CHANNEL * channels


class MemoryShares:
    """The memory taken by each user's tapes. This process's own user may take any amount.

    Attributes:
        most: Bytes that the tapes of another user may take.
    """

    def __init__(self, most: int = MAX_BYTES_OF_USER) -> None:
        """Let the tapes of another user take `most` bytes."""
        self.most = most
        self._tapes: dict[int, tuple[int, int]] = {}
        self._users: Counter[int] = Counter()

    def update(self, tape: TapeReader, channels: int) -> None:
        """Estimate a tape anew."""
        nonce = tape.identity.nonce
        self.forget(nonce)
        size = footprint(tape, channels)
        self._tapes[nonce] = tape.owner, size
        self._users[tape.owner] += size

    def forget(self, nonce: int) -> None:
        """Remove a tape."""
        owner, size = self._tapes.pop(nonce, (0, 0))
        self._users[owner] -= size

    def of_tapes(self, nonces: Iterable[int]) -> int:
        """Return what some tapes take together."""
        return sum(self._tapes[nonce][1] for nonce in nonces if nonce in self._tapes)

    def of_user(self, user: int) -> int:
        """Return what the tapes of a user take."""
        return self._users[user]

    def is_exceeded(self, user: int) -> bool:
        """Return whether the tapes of another user take more than their share."""
        return user != os.geteuid() and self._users[user] > self.most

    def exceeded(self) -> list[int]:
        """Return the users whose tapes take more than their share."""
        return [user for user in self._users if self.is_exceeded(user)]
