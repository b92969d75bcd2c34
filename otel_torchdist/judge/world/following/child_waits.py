"""Detects the child process that a rank waits for, its activity, and the start of that activity.

A rank with a stack in a DataLoader, or in Python's process modules, waits for a child. The stack does not show which
child; the children's states do. An idle child waits for a message. A child that was forked while a thread of the rank
held a lock may wait for that lock forever.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from otel_torchdist.judge.world.places import FrameOwner, owner_of, user_frame
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.rank_state.occupations import ChildWait
from otel_torchdist.model.rank_state.stacks import Stacks
from otel_torchdist.node.processes.children import (
    ChildView,
    LockWait,
    children_of,
    command_of,
    inspect_child,
    lock_wait_of,
    on_processor_ns,
)
from otel_torchdist.node.processes.state import belongs_to
from otel_torchdist.tape.identity import TapeIdentity, process_start_ticks, shares_pids

PAUSE_NS: Final = 500_000_000
LOCKED_NS: Final = 1_000_000_000
"""Time in ns after which a process whose threads all wait for its own locks is deadlocked."""
MAX_FRAMES: Final = 16
"""Number of innermost frames searched for a wait for a child."""
_LOADER: Final = re.compile(r"/torch/utils/data/dataloader\.py$")
_PROCESSES: Final = re.compile(
    r"/(multiprocessing/(connection|queues|pool|process|popen_\w+|synchronize)|concurrent/futures/\w+)\.py$"
)
_COMMANDS: Final = re.compile(r"/subprocess\.py$")


@dataclass(frozen=True, slots=True)
class _BlockedCall:
    """The system call in which a child is blocked.

    Attributes:
        arguments: The arguments, which distinguish this call from the next one.
        since_ns: Monotonic time at which the child was first seen in this call.
    """

    arguments: str
    since_ns: int


class ChildWaits:
    """Watches the children of one rank while its stack shows a wait for a child."""

    def __init__(self, identity: TapeIdentity, owner: int) -> None:
        """Watch the children of the process that writes a tape.

        Args:
            identity: Identity of the tape.
            owner: Owner of the tape. Other users could forge the pid, to learn which files a process reads.
        """
        self._pid = identity.pid if shares_pids(identity) else 0
        self._start_ticks = identity.pid_start_ticks
        self._owner = owner
        self._calls: dict[int, _BlockedCall] = {}
        self._lock_calls: dict[int, _BlockedCall] = {}
        self._checked_ns = 0
        self._stuck: ChildWait | None = None

    def check(self, stacks: Stacks | None, now_ns: int) -> ChildWait | None:
        """Return the child that the rank waits for; None if it waits for none, or if no child is stuck."""
        kind = _awaited(stacks)
        if not kind or not self._pid:
            # The next stack that shows a wait is checked immediately, because a report may follow.
            self._calls, self._stuck, self._checked_ns = {}, None, 0
            return None
        if now_ns - self._checked_ns >= PAUSE_NS:
            self._checked_ns = now_ns
            self._stuck = self._stuck_child(kind, stacks, now_ns)
        return self._stuck

    def _stuck_child(self, kind: str, stacks: Stacks | None, now_ns: int) -> ChildWait | None:
        """Return the child that has been stuck longest."""
        if not self._may_see(self._pid) or process_start_ticks(self._pid) != self._start_ticks:
            return None
        children = [pid for pid in children_of(self._pid) if self._may_see(pid)]
        locked = self._locked(kind, children, now_ns)
        if locked is not None:
            return replace(locked, holder=_other_users_frame(stacks) if locked.is_forked else None)
        views = [view for view in map(inspect_child, children) if view is not None]
        stuck = [(self._since_ns(view, now_ns), nth, view) for nth, view in enumerate(views) if view.is_stuck]
        self._calls = {view.pid: _BlockedCall(view.call.arguments, since_ns) for since_ns, _, view in stuck}
        if not stuck:
            return self._command(kind, children, now_ns)
        since_ns, nth, view = min(stuck, key=lambda child: child[:2])
        name = f"{kind} {nth}" if kind == _LOADER_WORKER and len(views) > 1 else kind
        return ChildWait(view.pid, name, view.doing, since_ns)

    def _command(self, kind: str, children: Sequence[int], now_ns: int) -> ChildWait | None:
        """Return the only command started by the rank, if the rank waits for it. It need not be stuck."""
        views = [command_of(pid, self._pid) for pid in children] if kind == _COMMAND else []
        commands = [view for view in views if view is not None]
        if len(commands) != 1:
            return None
        [command] = commands
        return ChildWait(command.pid, f"{_COMMAND} {command.name}", "running", now_ns - command.age_ns)

    def _locked(self, kind: str, children: Sequence[int], now_ns: int) -> ChildWait | None:
        """Return the children that have been deadlocked on their own locks for `LOCKED_NS`."""
        waits = [wait for pid in children if (wait := lock_wait_of(pid, self._pid, now_ns)) is not None]
        since = {wait.pid: self._locked_since_ns(wait, now_ns) for wait in waits}
        self._lock_calls = {wait.pid: _BlockedCall(wait.arguments, since[wait.pid]) for wait in waits}
        long = [
            wait
            for wait in waits
            if now_ns - since[wait.pid] >= LOCKED_NS and wait.is_loader is (kind == _LOADER_WORKER)
        ]
        if not long:
            return None
        first, *others = long
        return ChildWait(
            pid=first.pid,
            name=kind,
            doing="blocked on a lock",
            since_ns=max(since[wait.pid] for wait in long),
            others=tuple(wait.pid for wait in others),
            is_locked=True,
            is_forked=all(wait.is_forked for wait in long),
        )

    def _locked_since_ns(self, wait: LockWait, now_ns: int) -> int:
        if wait.since_ns is not None:
            return min(wait.since_ns, now_ns)
        known = self._lock_calls.get(wait.pid)
        return known.since_ns if known is not None and known.arguments == wait.arguments else now_ns

    def _may_see(self, pid: int) -> bool:
        return self._owner == os.geteuid() or belongs_to(pid, self._owner)

    def _since_ns(self, view: ChildView, now_ns: int) -> int:
        known = self._calls.get(view.pid)
        if known is not None and known.arguments == view.call.arguments:
            return known.since_ns
        return min(on_processor_ns(view.pid, now_ns) or now_ns, now_ns)


_LOADER_WORKER: Final = "DataLoader worker"
_CHILD: Final = "child process"
_COMMAND: Final = "command"


def _other_users_frame(stacks: Stacks | None) -> CallSiteName | None:
    """Return the user frame of the only thread that runs user code and does not wait for a child, or None."""
    threads = (stacks.threads or ()) if stacks is not None else ()
    others = [stack for stack in threads if not _awaited(Stacks(0, (stack,)))]
    frames = [user_frame(stack.frames) for stack in others]
    of_user = [frame for frame in frames if frame is not None and owner_of(frame.file) is FrameOwner.USER]
    return of_user[0] if len(of_user) == 1 else None


def _awaited(stacks: Stacks | None) -> str:
    """Return the kind of child that a rank waits for, by its stacks; '' if none."""
    threads = (stacks.threads or ()) if stacks is not None else ()
    files = [frame.file for stack in threads for frame in stack.frames[:MAX_FRAMES]]
    if any(map(_LOADER.search, files)):
        return _LOADER_WORKER
    if any(map(_PROCESSES.search, files)):
        return _CHILD
    return _COMMAND if any(map(_COMMANDS.search, files)) else ""
