"""Limits on the resources of an agent: open files, processor time, and memory for each user's tapes."""

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
# Limits the file descriptors that job directories and tapes take, so that one user cannot use all of them up.


MAX_DESCRIPTORS: Final = 65_536
MAX_TAPES_OF_USER: Final = 1024
_RESERVE: Final = 32
_FREE_DIVISOR: Final = 8
"""At least 32 descriptors, and at least one eighth of them, stay free for scrapers and briefly opened files.

Below a limit of 64, half of the descriptors stay free, so that a small job can still be read.
"""
_FILES_OF_DIRECTORY: Final = 1
"""Descriptors per job directory: its lock."""
_FILES_OF_TAPE: Final = 2
"""Descriptors per tape: the tape, and a pidfd of its writer."""


class UsedDescriptors:
    """The file descriptors in use, by user."""

    def __init__(self) -> None:
        self._tapes: Counter[int] = Counter()
        self._descriptors: Counter[int] = Counter()

    def count(self, directories: Iterable[tuple[int, int]]) -> None:
        """Update the counts.

        Args:
            directories: The owner of each job directory, and the number of its open tapes. A directory without open
                tapes counts as one tape, so that its first tape can always be opened.
        """
        self._tapes.clear()
        self._descriptors.clear()
        for user, tapes in directories:
            self._tapes[user] += max(tapes, 1)
            self._descriptors[user] += _FILES_OF_DIRECTORY + _FILES_OF_TAPE * max(tapes, 1)

    def room_for(self, user: int) -> int:
        """Return how many more tapes of a user may be opened.

        A user other than this process's own gets at most half of all descriptors.
        """
        return self._room(user, 0)

    def has_room_for_directory(self, user: int) -> bool:
        """Return whether another job directory of a user, with one tape, may be opened."""
        return self._room(user, _FILES_OF_DIRECTORY) > 0

    def _room(self, user: int, reserved: int) -> int:
        limit = _soft_limit()
        usable = limit - max(min(_RESERVE, limit // 2), limit // _FREE_DIVISOR)
        room = (usable - self._descriptors.total() - reserved) // _FILES_OF_TAPE
        if user != os.geteuid():
            share = (usable // 2 - self._descriptors[user] - reserved) // _FILES_OF_TAPE
            room = min(room, share, MAX_TAPES_OF_USER - self._tapes[user])
        return max(room, 0)


def raise_descriptor_limit() -> None:
    """Raise the limit of file descriptors, up to the hard limit.

    The default soft limit of 1,024 exists only for programs that use `select`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < target:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


def _soft_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else min(soft, MAX_DESCRIPTORS)


# --- cores ------------------------------------------------------------------------------------------------------------
# Lowers the agent's scheduling priority below training, so that on busy cores it takes only a small share of one core.
#
# Nice 5 gives it a third of a rank's weight. Lower priorities (nice 19, SCHED_IDLE) are too low: if other programs keep
# all cores busy, a pass over the tapes that takes 10 ms would take a second, and a verdict some seconds.
#
# SCHED_BATCH keeps the agent from preempting a rank when it wakes.
#
# Linux may group processes by session first (`sched_autogroup_enabled`). The agent has its own session, which then
# weighs as much as all ranks of the node together, whatever its nice value is. So its session gets a nice value too.
#
# While the agent starts, and while a verdict may be due soon, it keeps the inherited priority: a waiting rank does not
# need the core, and the verdict must not come late. Anyone may restore the nice value of a session; for a process, that
# takes root or a sufficient `RLIMIT_NICE`.


NICE: Final = 5
"""Added to the inherited nice value of the process and of its session: a weight of 335 against 1,024."""
CALM_S: Final = 5.0
"""Seconds without an imminent verdict after which the agent lowers its priority. It starts with the inherited one."""

_AUTOGROUP: Final = "/proc/self/autogroup"
_THREADS: Final = "/proc/self/task"


class Priority:
    """The scheduling priority of all threads of this process. Not thread-safe."""

    def __init__(self, lowers_session: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the current priority, without changing it.

        Args:
            lowers_session: Whether to lower the priority of the session too. Ignored if it contains other processes.
            clock: Returns the monotonic time in seconds.
        """
        self._now = clock
        self._nice = os.getpriority(os.PRIO_PROCESS, 0)
        self._policy, self._param = os.sched_getscheduler(0), os.sched_getparam(0)
        self._urgent_s = clock()
        self._is_lowered = False
        self._lowers_session = lowers_session and _has_own_session()
        self._is_session_lowered = False

    def update(self, is_urgent: bool) -> None:
        """Lower the priority after `CALM_S` without urgency; restore it as soon as a verdict may be due."""
        now_s = self._now()
        if is_urgent:
            self._urgent_s = now_s
        is_lowered = now_s - self._urgent_s >= CALM_S
        if self._is_lowered is not is_lowered:
            self._is_lowered = is_lowered
            self._set_thread_priorities(is_lowered)
        if self._lowers_session and self._is_session_lowered is not is_lowered:
            self._set_session_priority(is_lowered)

    def _set_thread_priorities(self, is_lowered: bool) -> None:
        """Set the nice value and the policy of every thread: on Linux they belong to threads, not to the process."""
        nice = min(self._nice + NICE, 19) if is_lowered else self._nice
        policy, param = (os.SCHED_BATCH, os.sched_param(0)) if is_lowered else (self._policy, self._param)
        for thread in map(int, os.listdir(_THREADS)):
            with contextlib.suppress(OSError):  # the thread has ended
                os.sched_setscheduler(thread, policy, param)
            with contextlib.suppress(OSError):  # it has ended, or restoring its nice value is not permitted
                os.setpriority(os.PRIO_PROCESS, thread, nice)

    def _set_session_priority(self, is_lowered: bool) -> None:
        try:
            with open(_AUTOGROUP, "w") as file:
                file.write(str(NICE if is_lowered else 0))
            self._is_session_lowered = is_lowered
        except BlockingIOError:  # the kernel accepts at most ten changes a second: the next turn tries again
            return
        except OSError:  # this kernel does not group processes by session
            self._lowers_session = False


def _has_own_session() -> bool:
    """Return whether the session contains only the agent.

    A terminal's session has a live leader; the leader of a session that a rank has created for the agent is gone.
    """
    leader = os.getsid(0)
    return leader == os.getpid() or (leader != 0 and not os.path.exists(f"/proc/{leader}"))


# --- memory -----------------------------------------------------------------------------------------------------------
# Estimates the memory that reading each user's tapes takes in this process, so that one user cannot use up all of it.
# Measured with up to 2,660 names a tape and groups of 3 to 1,024 members, the estimate is 0.8 to 1.6 times the memory
# allocated. It grows with the tape's names, with the bytes of long names (members of groups, shapes), with its open
# operations and with its channels. All other memory is bounded per tape or per job.


MAX_BYTES_OF_USER: Final = 256 << 20
"""Memory limit for the tapes of one user. Eight ranks with 300 groups of 1,024 members each take 180 MiB; with 64
members each, 24 MiB."""
_BYTES_OF_TAPE: Final = 768 << 10
_BYTES_OF_NAME: Final = 1_536
_USUAL_NAME_BYTES: Final = 200
_BYTES_OF_EXCESS_BYTE: Final = 15
"""Bytes of memory for each byte of names beyond `_USUAL_NAME_BYTES` per name."""
_BYTES_OF_OPEN_OPERATION: Final = 640
_BYTES_OF_CHANNEL: Final = 640


def footprint(tape: TapeReader, channels: int) -> int:
    """Estimate the memory, in bytes, that a reader keeps for a tape.

    Args:
        tape: The tape.
        channels: Number of channels that the tape's rank has used.
    """
    names, size = tape.names.count, tape.names.bytes_read
    excess = max(size - _USUAL_NAME_BYTES * names, 0)
    kept = _BYTES_OF_NAME * names + _BYTES_OF_EXCESS_BYTE * excess
    return _BYTES_OF_TAPE + kept + _BYTES_OF_OPEN_OPERATION * tape.open_count + _BYTES_OF_CHANNEL * channels


class MemoryShares:
    """Memory taken by each user's tapes. The tapes of this process's own user may take any amount.

    Attributes:
        most: Limit in bytes for the tapes of each other user.
    """

    def __init__(self, most: int = MAX_BYTES_OF_USER) -> None:
        """Limit the tapes of each other user to `most` bytes."""
        self.most = most
        self._tapes: dict[int, tuple[int, int]] = {}
        self._users: Counter[int] = Counter()

    def update(self, tape: TapeReader, channels: int) -> None:
        """Replace the estimate for a tape."""
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
        """Return the estimated bytes of some tapes together."""
        return sum(self._tapes[nonce][1] for nonce in nonces if nonce in self._tapes)

    def of_user(self, user: int) -> int:
        """Return the estimated bytes of a user's tapes."""
        return self._users[user]

    def is_exceeded(self, user: int) -> bool:
        """Return whether the tapes of another user exceed the limit."""
        return user != os.geteuid() and self._users[user] > self.most

    def exceeded(self) -> list[int]:
        """Return the users whose tapes exceed the limit."""
        return [user for user in self._users if self.is_exceeded(user)]
