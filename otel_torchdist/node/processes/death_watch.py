"""Records the ends of local ranks' processes as they happen, on a separate thread.

A pidfd becomes readable when its process has ended, and epoll returns descriptors in the order in which they became
readable. So the order of deaths is right even if this thread runs late; the time of a death is when the thread ran.
Without a pidfd (another PID namespace, no free descriptor, a kernel or sandbox without pidfds) the lock on the tape is
polled every 10 ms.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from otel_torchdist import guard
from otel_torchdist.model.rank_state.lives import BY_CGROUP, BY_NODE, Death, Stopped
from otel_torchdist.node.job.ancestry import parent_of
from otel_torchdist.node.job.runs.lives import read_death
from otel_torchdist.node.processes import pidfd
from otel_torchdist.node.processes.cgroups import OomKills
from otel_torchdist.node.processes.endings import SIGNALS_NS, error_file_of, error_in, is_any_killed, is_launcher_awake
from otel_torchdist.node.processes.state import belongs_to, name_of, survives_sigterm
from otel_torchdist.node.processes.watched_process import WatchedProcess
from otel_torchdist.system.files.kept import move_up, open_epoll
from otel_torchdist.system.files.locks import is_locked_elsewhere
from otel_torchdist.system.files.others import open_regular
from otel_torchdist.tape.identity import TapeIdentity, dead_status, process_start_ticks, shares_pids

IDLE_S: Final = 1.0
"""Interval between readings of the out-of-memory counters, and between attempts to open missing pidfds."""
POLL_S: Final = 0.01
"""Interval between polls of locks, and of wait statuses that only the parent has received so far."""
POLLED_AT_ONCE: Final = 16
"""Maximum polled processes with the interval `POLL_S`. With more, it grows in proportion."""
STATUS_WAIT_NS: Final = 1_000_000_000
"""Time for which a death is not published while its wait status is unknown.

If the zombie may not be read, the kernel gives the status only after the parent has waited for the process.
"""
STATUS_GIVEN_UP_NS: Final = 5_000_000_000
"""Time after which a missing wait status is given up: the launcher will never wait for the process."""
_SIGKILL: Final = 9


class DeathWatch:
    """A watch for the deaths of tapes' writers, on its own thread. Only one thread may call its methods.

    The watching thread starts with the first rank.
    """

    def __init__(
        self,
        zombie_status: Callable[[int, int], int | None] = dead_status,
        wait_status: Callable[[int], int | None] = pidfd.wait_status,
        status_wait_ns: int = STATUS_WAIT_NS,
    ) -> None:
        """Start without processes.

        Args:
            zombie_status: Returns the wait status of a zombie, by pid and start time in clock ticks.
            wait_status: Returns the wait status of a reaped process, by pidfd.
            status_wait_ns: See `STATUS_WAIT_NS`.
        """
        self._zombie_status, self._wait_status, self._status_wait_ns = zombie_status, wait_status, status_wait_ns
        self._lock = threading.Lock()
        self._watched: dict[int, WatchedProcess] = {}
        self._oom = OomKills()
        self._just_ended: list[WatchedProcess] = []
        self._last_ns = 0
        self._epoll: select.epoll | None = None
        self._wake = -1
        self._thread: threading.Thread | None = None
        self._is_stopping = False

    def follow(self, tape: Path, identity: TapeIdentity, owner: int) -> None:
        """Watch the writer of a tape.

        Args:
            tape: The tape.
            identity: Its identity.
            owner: Its owner. The process must be this user's, who must not learn how other users' processes end.
        """
        death = read_death(tape, owner)
        watched = WatchedProcess(tape, identity, owner, death=death, is_published=death is not None)
        with self._lock:
            self._watched[identity.nonce] = watched
            if watched.death is None:
                self._start()
                self._open_handle(watched)
        self._interrupt()

    def forget(self, nonce: int) -> None:
        """Stop watching a process."""
        with self._lock:
            watched = self._watched.pop(nonce, None)
            if watched is not None:
                self._release(watched)

    def death_of(self, nonce: int) -> Death | None:
        """Return the death of the writer of the tape with this nonce; None if none has been seen.

        If a process had ended before it was watched, its launcher may record the end a little later.
        """
        watched = self._watched.get(nonce)
        if watched is not None and watched.was_gone and watched.death is None:
            watched.death = read_death(watched.tape, watched.owner)
            watched.is_published = watched.death is not None
        return watched.death if watched is not None and watched.is_published else None

    def awaits_end(self, nonce: int) -> bool:
        """Return whether a process is watched through a pidfd, and `death_of` does not return its end yet."""
        watched = self._watched.get(nonce)
        return watched is not None and watched.pidfd >= 0 and not watched.is_published

    def note(self, nonce: int, stopped: Stopped | None, ran_ns: int) -> None:
        """Remember the last observation of a live process; see `Deaths`."""
        watched = self._watched.get(nonce)
        if watched is not None and watched.death is None:
            watched.stopped, watched.ran_ns = stopped, ran_ns

    def stop(self) -> None:
        """End the thread and close all descriptors."""
        self._is_stopping = True
        self._interrupt()
        if self._thread is not None:
            self._thread.join(2 * IDLE_S)
        with self._lock:
            for watched in self._watched.values():
                watched.close()
            if self._epoll is not None:
                self._epoll.close()
                os.close(self._wake)
            self._epoll, self._wake = None, -1

    # --- under the lock -----------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Open the descriptors of the thread, and start it. Without free descriptors, the thread tries again."""
        if self._epoll is None:
            with contextlib.suppress(OSError):
                wake = move_up(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
                try:
                    epoll = open_epoll()
                except OSError:
                    os.close(wake)
                    raise
                epoll.register(wake, select.EPOLLIN)
                self._epoll, self._wake = epoll, wake
        if self._thread is None and not self._is_stopping:
            self._thread = threading.Thread(target=self._run, name="otel-torchdist-deaths", daemon=True)
            self._thread.start()

    def _open_handle(self, watched: WatchedProcess) -> None:
        """Open a pidfd of a process, else its tape to poll the lock; does nothing if no descriptor is free."""
        if self._epoll is not None and watched.pidfd < 0 and shares_pids(watched.identity):
            with contextlib.suppress(OSError):
                self._open_pidfd(watched, self._epoll)
        if watched.pidfd >= 0 or watched.lock >= 0 or watched.was_gone:
            return
        with contextlib.suppress(OSError):
            file = move_up(open_regular(watched.tape, watched.owner))
            if is_locked_elsewhere(file):
                watched.lock = file
            else:
                os.close(file)
                watched.was_gone = True

    def _open_pidfd(self, watched: WatchedProcess, epoll: select.epoll) -> None:
        pid = watched.identity.pid
        file = move_up(pidfd.open_process(pid))
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, file)
            # Checked after the pidfd was opened: until that process is reaped, the pid refers to it.
            if process_start_ticks(pid) != watched.identity.pid_start_ticks or not belongs_to(pid, watched.owner):
                return
            epoll.register(file, select.EPOLLIN)
            undo.pop_all()
        if watched.lock >= 0:
            os.close(watched.lock)
            watched.lock = -1
        watched.pidfd, watched.oom_counter, watched.error_file = file, self._oom.follow(pid), error_file_of(pid)
        watched.launcher, watched.survives_sigterm = name_of(parent_of(pid)), survives_sigterm(pid) or False

    def _release(self, watched: WatchedProcess) -> None:
        if watched.pidfd >= 0 and self._epoll is not None:
            with contextlib.suppress(OSError):
                self._epoll.unregister(watched.pidfd)
        watched.close()

    # --- on the thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        checked_at = time.monotonic()
        while not self._is_stopping:
            ready = self._wait()
            now_ns = time.monotonic_ns()
            with guard.guarded("watching for deaths"), self._lock:
                self._handle_ended(ready, now_ns)
                if time.monotonic() - checked_at >= IDLE_S:
                    checked_at = time.monotonic()
                    self._recheck()

    def _wait(self) -> list[int]:
        """Return the descriptors that have become readable, in that order."""
        epoll = self._epoll
        timeout_s = self._pause_s()
        if epoll is None:
            time.sleep(timeout_s)
            return []
        try:
            return [file for file, _ in epoll.poll(timeout_s)]
        except (OSError, ValueError):  # closed by `stop`
            return []

    def _pause_s(self) -> float:
        """Return the seconds until the next pass: short if locks or wait statuses have to be polled."""
        if self._just_ended:
            return POLL_S
        processes = [*self._watched.values()]
        polled = sum(process.lock >= 0 or (process.death is not None and process.pidfd >= 0) for process in processes)
        return min(POLL_S * max(1.0, polled / POLLED_AT_ONCE), IDLE_S) if polled else IDLE_S

    def _handle_ended(self, ready: list[int], now_ns: int) -> None:
        by_file = {watched.pidfd: watched for watched in self._watched.values() if watched.pidfd >= 0}
        ended = [by_file[file] for file in ready if file in by_file]
        for watched in ended:
            watched.mark_ended(self._next_ns(now_ns), 0)
            self._just_ended.append(watched)
            if self._epoll is not None:
                self._epoll.unregister(watched.pidfd)
        if self._wake in ready:
            with contextlib.suppress(OSError):
                os.eventfd_read(self._wake)
        for watched in self._watched.values():
            if watched.lock >= 0 and not is_locked_elsewhere(watched.lock):
                watched.mark_ended(self._next_ns(now_ns), round(2e9 * self._pause_s()))
                watched.close()
                ended.append(watched)
        # Statuses first: a zombie's status is gone once the parent has waited for it.
        for watched in ended:
            self._find_cause(watched)
        for watched in ended:
            watched.record()
        if self._just_ended:
            self._classify_just_ended(now_ns)
        self._retry_statuses(now_ns)

    def _next_ns(self, now_ns: int) -> int:
        """Return a unique time for the next end."""
        self._last_ns = max(now_ns, self._last_ns + 1)
        return self._last_ns

    def _classify_just_ended(self, now_ns: int) -> None:
        """Decide whether the processes in `_just_ended` ended alone; keep them there while that may still change."""
        living = {
            watched.identity.pid: watched.identity.rank
            for watched in self._watched.values()
            if watched.death is None and watched.pidfd >= 0
        }
        ended = [(watched, watched.death) for watched in self._just_ended if watched.death is not None]
        is_another_killed = is_any_killed(living)
        signals = [death.signal for _, death in ended if death.signal]
        for watched, death in ended:
            if not death.with_others and (is_another_killed or signals.count(death.signal) > 1):
                watched.death = dataclasses.replace(death, with_others=True)
                watched.record()
        first, first_death = ended[0]
        was_lowest = all(first.identity.rank < rank for rank in living.values())  # launchers signal the lowest first
        is_decided = is_another_killed or not was_lowest or now_ns - first_death.at_ns > SIGNALS_NS
        if is_decided or not is_launcher_awake(living):
            self._just_ended.clear()

    def _find_cause(self, watched: WatchedProcess) -> None:
        death, identity = watched.death, watched.identity
        assert death is not None
        status = self._zombie_status(identity.pid, identity.pid_start_ticks) if watched.pidfd >= 0 else None
        if status is None and watched.pidfd >= 0:
            status = self._wait_status(watched.pidfd)
        death = dataclasses.replace(death, status=status)
        if status is None or death.signal == _SIGKILL:
            oom = BY_CGROUP if self._oom.has_grown(watched.oom_counter) else ""
            if not oom and watched.pidfd >= 0 and self._oom.has_grown_on_node():
                oom = BY_NODE
            death = dataclasses.replace(death, oom=oom)
        watched.death = death
        self._read_error_file(watched)
        if status is not None or watched.pidfd < 0:
            watched.is_published = True
            watched.close()

    def _read_error_file(self, watched: WatchedProcess) -> None:
        """Read the error file of a process with a nonzero exit code, on a thread, because its file system may hang."""
        death, path = watched.death, watched.error_file
        if death is None or path is None or not death.exit_code:
            return
        watched.error_file = None
        reader = threading.Thread(
            target=self._add_error, args=(watched, path), name="otel-torchdist-error", daemon=True
        )
        reader.start()

    def _add_error(self, watched: WatchedProcess, path: Path) -> None:
        with guard.guarded("the error file of a rank"):
            error = error_in(path)
            with self._lock:
                if error and watched.death is not None:
                    watched.death = dataclasses.replace(watched.death, error=error)
                    watched.record()

    def _retry_statuses(self, now_ns: int) -> None:
        """Retry to read missing wait statuses: they appear once the parent has waited for the process."""
        for watched in self._watched.values():
            death = watched.death
            if death is None or watched.pidfd < 0:
                continue
            # In this order: once the parent has waited for the process, its status is available now or never.
            is_released = process_start_ticks(watched.identity.pid) != watched.identity.pid_start_ticks
            status = self._wait_status(watched.pidfd)
            if status is not None:
                keeps_oom = os.WIFSIGNALED(status) and os.WTERMSIG(status) == _SIGKILL
                watched.death = dataclasses.replace(death, status=status, oom=death.oom if keeps_oom else "")
                watched.is_published = True
                watched.record()
                self._read_error_file(watched)
            elif is_released or now_ns - death.at_ns > self._status_wait_ns:
                watched.is_published = True
            if status is not None or is_released or now_ns - death.at_ns > STATUS_GIVEN_UP_NS:
                watched.close()

    def _recheck(self) -> None:
        """Retry processes for which no descriptor was free, and read the counters. Runs once a second."""
        if self._epoll is None:
            self._start()
        for watched in self._watched.values():
            if watched.death is None and watched.pidfd < 0 and not watched.was_gone:
                self._open_handle(watched)
        for watched in self._watched.values():
            if watched.death is None and watched.pidfd >= 0:
                watched.update_survives_sigterm()
        living = [watched for watched in self._watched.values() if watched.death is None]
        self._oom.forget_all_but({watched.oom_counter for watched in living if watched.oom_counter})
        self._oom.read()

    def _interrupt(self) -> None:
        if self._wake >= 0:
            with contextlib.suppress(OSError):
                os.eventfd_write(self._wake, 1)
