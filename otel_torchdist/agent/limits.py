"""What an agent takes of its machine: open files, time on the cores, and memory for each user's tapes."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from otel_torchdist.tape.reading.reader import TapeReader

# --- open files -------------------------------------------------------------------------------------------------------
# Limits what an agent has open: job directories and tapes take descriptors, and one user must not use them up.


MAX_DESCRIPTORS: Final = 65_536
MAX_TAPES_OF_USER: Final = 1024
_RESERVE: Final = 32
_SHARE_KEPT: Final = 8
"""An eighth of the descriptors, but at least 32, stays free for files that are opened briefly and for scrapers. With a
limit below 64 half of it stays free, because otherwise a small job would not be read at all."""
_FILES_OF_DIRECTORY: Final = 1
"""Descriptors of a job directory: its lock."""
_FILES_OF_TAPE: Final = 2
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
            self._taken[user] += _FILES_OF_DIRECTORY + _FILES_OF_TAPE * max(tapes, 1)

    def room_for(self, user: int) -> int:
        """How many more tapes of a user may be opened, out of what is left; other users get at most half of all."""
        return self._room(user, 0)

    def has_room_for_directory(self, user: int) -> bool:
        """Whether one more job directory of a user may be read, with a tape in it."""
        return self._room(user, _FILES_OF_DIRECTORY) > 0

    def _room(self, user: int, set_aside: int) -> int:
        limit = _soft_limit()
        most = limit - max(min(_RESERVE, limit // 2), limit // _SHARE_KEPT)
        room = (most - self._taken.total() - set_aside) // _FILES_OF_TAPE
        if user != os.geteuid():
            share = (most // 2 - self._taken[user] - set_aside) // _FILES_OF_TAPE
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


# --- cores ------------------------------------------------------------------------------------------------------------
# The agent's place behind training: where all cores are busy it reads with a small share of one, and never with more.
# At nice 5 it weighs a third of a rank. It is not put at the very end (nice 19, SCHED_IDLE): there, a pass over the
# tapes that takes 10 ms would take a second where foreign programs keep all cores busy, and a verdict some seconds.
#
# It is scheduled as a batch process: when it wakes, it waits for its turn and interrupts no rank.
#
# Linux may group processes by session first (`sched_autogroup_enabled`). It then weighs the agent, which has a session
# of its own, as much as all ranks of the node together, whatever its nice value is. So its session is weighed too.
#
# While a verdict may be due soon, and while it starts, it stands beside training like any other process: a rank that
# waits does not need the core, and the verdict must not come late. The weight of a session may be given back by anyone;
# a nice value only by root, or as far as `RLIMIT_NICE` allows.


NICE: Final = 5
"""Added to the nice value that the agent has inherited, and that of its session: a weight of 335 against 1,024."""
CALM_S: Final = 5.0
"""How long nothing must have been urgent, the start included, before the agent gives way."""

_AUTOGROUP: Final = "/proc/self/autogroup"
_THREADS: Final = "/proc/self/task"


class Priority:
    """The priority of this process, of all its threads. Not thread-safe."""

    def __init__(self, weighs_session: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        """Leave it as it is for now.

        Args:
            weighs_session: Whether the session of this process is weighed too. It is only if it is the agent's alone.
            clock: Returns the monotonic time in seconds.
        """
        self._now = clock
        self._nice = os.getpriority(os.PRIO_PROCESS, 0)
        self._policy, self._param = os.sched_getscheduler(0), os.sched_getparam(0)
        self._urgent_s = clock()
        self._is_behind = False
        self._weighs_session = weighs_session and _has_own_session()
        self._is_session_behind = False

    def update(self, is_urgent: bool) -> None:
        """Give way to training, unless a verdict may be due soon or was a moment ago."""
        now_s = self._now()
        if is_urgent:
            self._urgent_s = now_s
        is_behind = now_s - self._urgent_s >= CALM_S
        if self._is_behind is not is_behind:
            self._is_behind = is_behind
            self._place_threads(is_behind)
        if self._weighs_session and self._is_session_behind is not is_behind:
            self._place_session(is_behind)

    def _place_threads(self, is_behind: bool) -> None:
        """Threads have nice values and policies of their own, which those that they start inherit."""
        nice = min(self._nice + NICE, 19) if is_behind else self._nice
        policy, param = (os.SCHED_BATCH, os.sched_param(0)) if is_behind else (self._policy, self._param)
        for thread in map(int, os.listdir(_THREADS)):
            with contextlib.suppress(OSError):  # it has ended
                os.sched_setscheduler(thread, policy, param)
            with contextlib.suppress(OSError):  # or may not have more than it has
                os.setpriority(os.PRIO_PROCESS, thread, nice)

    def _place_session(self, is_behind: bool) -> None:
        try:
            with open(_AUTOGROUP, "w") as file:
                file.write(str(NICE if is_behind else 0))
            self._is_session_behind = is_behind
        except BlockingIOError:  # the kernel changes it at most ten times a second: the next turn tries again
            return
        except OSError:  # this kernel does not group processes by session
            self._weighs_session = False


def _has_own_session() -> bool:
    """Whether the session is the agent's alone: a terminal's has a leader; one that ranks start has lost its."""
    leader = os.getsid(0)
    return leader == os.getpid() or (leader != 0 and not os.path.exists(f"/proc/{leader}"))


# --- memory -----------------------------------------------------------------------------------------------------------
# Estimates the memory that reading each user's tapes takes here, so that no user's take all of it.
# Measured with up to 2,660 names a tape and groups of 3 to 1,024 members, the estimate is 0.8 to 1.6 times what is
# allocated. What is kept of a tape grows with its names, the bytes of these beyond a usual name's (members of groups,
# shapes), what is open, and its channels; all else is bounded for each tape or for each job.


MAX_BYTES_OF_USER: Final = 256 << 20
"""Eight ranks with 300 groups of 1,024 members each take 180 MiB, with 64 members each 24 MiB."""
_BYTES_OF_TAPE: Final = 768 << 10
_OF_NAME: Final = 1_536
_USUAL_NAME: Final = 200
_OF_FURTHER_BYTE: Final = 15
_BYTES_OF_OPEN: Final = 640
_BYTES_OF_CHANNEL: Final = 640


def footprint(tape: TapeReader, channels: int) -> int:
    """Estimate the bytes that are kept of a tape.

    Args:
        tape: The tape.
        channels: Channels whose progress is known.
    """
    names, size = tape.names.count, tape.names.bytes_read
    further = max(size - _USUAL_NAME * names, 0)
    kept = _OF_NAME * names + _OF_FURTHER_BYTE * further
    return _BYTES_OF_TAPE + kept + _BYTES_OF_OPEN * tape.open_count + _BYTES_OF_CHANNEL * channels


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
