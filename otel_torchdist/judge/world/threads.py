"""The threads of a rank: the thread that should enter an operation, and the reason why it does not.

Each thread that communicates can wait independently. Short-lived threads are identified by the function they run; see
`CallerName`.
"""

from __future__ import annotations

import dataclasses
import enum
import os
import re
from pathlib import Path
from typing import Final

from otel_torchdist.judge.world.places import FrameOwner, owner_of
from otel_torchdist.model.calls import OperationId, OperationView
from otel_torchdist.model.kinds import Flag, Phase
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.operations import Operation
from otel_torchdist.model.rank_state.occupations import Occupation, OccupationKind
from otel_torchdist.model.rank_state.stacks import Stacks, ThreadStack
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.model.text import name_caller
from otel_torchdist.node.job.requests.stacks import last_stack, offer_path, stacks_path
from otel_torchdist.node.job.requests.stacks_file import read_stacks
from otel_torchdist.tape.names.reader import MAIN_THREAD

_ON_DEVICE: Final = int(Flag.ON_DEVICE)
_ENGINE: Final = re.compile(r"/torch/(autograd/(graph|__init__|function)|_tensor)\.py$")
_FUTURE: Final = re.compile(r"/torch/futures/__init__\.py$")
_DEVICE: Final = re.compile(r"/torch/(cuda|xpu|accelerator)/(__init__|streams)\.py$")
_OPTIMIZER: Final = re.compile(r"/torch/optim/\w+\.py$")
_FOR_THREADS: Final = re.compile(r"/(threading|queue|selectors|concurrent/futures/_base)\.py$")
_LOADER: Final = re.compile(r"/torch/utils/data/")
"""DataLoader code waits for its own threads and processes. They call no collectives."""


class ThreadWait(enum.Enum):
    """Whether a thread of a rank waits for an open operation."""

    WAITS = enum.auto()
    ELSEWHERE = enum.auto()
    """The operation is open, but the stack shows its thread in other code."""
    PERHAPS = enum.auto()
    """The thread is blocked at a line of the program. C code called there may wait for the operation."""
    UNSEEN = enum.auto()


class WaitLink(enum.Enum):
    """Whether one thread's wait keeps its rank from entering an operation."""

    OWN = enum.auto()
    """The waiting thread itself should enter the operation."""
    THROUGH = enum.auto()
    """The thread that should enter it waits for another thread, or for work, or has not started."""
    NONE = enum.auto()
    """The thread that should enter the operation is busy in other code."""
    UNKNOWN = enum.auto()


def thread_wait_of(view: RankView, operation: OperationView) -> ThreadWait:
    """Return whether a thread of a rank waits for one of its open operations, by records and stacks.

    A backward pass waits in C++ for the operations it has issued, such as DDP's buckets, and a device for all
    work enqueued on it. So a thread in a backward pass or optimizer step waits for these operations, unless its
    innermost frame is a line of the program.
    """
    record = operation.record
    if record.is_blocking:
        return ThreadWait.WAITS
    occupation = next((occupation for occupation in view.occupations if _may_wait(occupation, record)), None)
    thread = occupation.thread if occupation is not None else record.thread
    stack = stack_since(view, thread)
    if stack is None:
        return ThreadWait.UNSEEN if occupation is None else ThreadWait.WAITS
    return _wait_by_stack(stack, occupation, record)


def _may_wait(occupation: Occupation, record: Operation) -> bool:
    is_own = occupation.thread == record.thread
    is_within = occupation.since_ns <= record.entered_ns
    match occupation.kind:
        case OccupationKind.BACKWARD:  # autograd has its own threads for devices
            return is_within and (is_own or record.phase is Phase.BACKWARD)
        case OccupationKind.OPTIMIZER_STEP:
            return is_own and (is_within or bool(int(record.flags) & _ON_DEVICE))
        case OccupationKind.FUTURE:
            return is_own and not is_within


def _wait_by_stack(stack: ThreadStack, occupation: Occupation | None, record: Operation) -> ThreadWait:
    inner = next((frame for frame in stack.frames if owner_of(frame.file) is not FrameOwner.OTEL_TORCHDIST), None)
    is_on_device = bool(int(record.flags) & _ON_DEVICE)
    if occupation is not None and occupation.kind is OccupationKind.FUTURE:
        return ThreadWait.WAITS
    if inner is None:
        return ThreadWait.UNSEEN
    if _ENGINE.search(inner.file):
        return ThreadWait.WAITS if occupation is not None or record.phase is Phase.BACKWARD else ThreadWait.ELSEWHERE
    if _FUTURE.search(inner.file) or (_DEVICE.search(inner.file) and is_on_device):
        return ThreadWait.WAITS
    if _OPTIMIZER.search(inner.file) and occupation is not None:
        return ThreadWait.WAITS
    # A line of the program may block in C: `.item()` waits for a device; other calls wait for a lock.
    if stack.is_locked and owner_of(inner.file).is_of_program:
        return ThreadWait.PERHAPS
    return ThreadWait.UNSEEN if is_on_device else ThreadWait.ELSEWHERE


def stack_since(view: RankView, thread: int) -> ThreadStack | None:
    """Return the stack of a thread if it is newer than the thread's last record; None otherwise."""
    stacks = view.stacks
    if stacks is None or not thread:
        return None
    threads, asked_ns = stacks.newest
    if asked_ns < _last_record_ns(view, thread):
        return None
    return next((stack for stack in threads if stack.thread == thread), None)


def _last_record_ns(view: RankView, thread: int) -> int:
    calls = [operation.record for operation in (*view.open, view.last) if operation is not None]
    own = [record for record in calls if record.thread == thread]
    return max((max(call.entered_ns, call.wait_entered_ns or 0, call.completed_ns or 0) for call in own), default=0)


# --- the thread that should enter -------------------------------------------------------------------------------------


def wait_link_of(world: WorldSnapshot, rank: int, operation_id: OperationId, waiting: OperationView) -> WaitLink:
    """Return whether a wait keeps a rank from entering an operation that it has not entered.

    Args:
        world: The snapshot.
        rank: The rank.
        operation_id: The operation.
        waiting: The operation in which one of its threads waits.
    """
    view = world.ranks[rank]
    progress = view.progress.get(operation_id.channel)
    threads = progress.threads if progress is not None else ()
    if waiting.record.thread in threads:
        return WaitLink.OWN
    callers = _due_callers(world, view, operation_id)
    if waiting.caller in callers or not (threads or (callers and waiting.caller)):
        return WaitLink.OWN
    if view.stacks is None or view.stacks.by_signal or not view.stacks.newest[0]:
        return WaitLink.UNKNOWN
    due = _due_thread(world, view, operation_id)
    if due is None:
        return WaitLink.THROUGH
    if stack_since(view, due.thread) is None:
        return WaitLink.UNKNOWN
    if _waits_for_threads(due) or not _is_busy(due):
        return WaitLink.THROUGH
    # A line of the program may wait for a lock held by another thread, which no frame shows.
    return WaitLink.NONE if due.is_locked is False else WaitLink.UNKNOWN


def missing_thread(world: WorldSnapshot, rank: int, operation_id: OperationId) -> ThreadStack | None:
    """Return the thread of a rank that should have entered an operation.

    Returns:
        None if it is unknown, or idle: then another thread should have given it work.
    """
    due = _due_thread(world, world.ranks[rank], operation_id)
    return due if due is not None and _is_busy(due) else None


def _due_thread(world: WorldSnapshot, view: RankView, operation_id: OperationId) -> ThreadStack | None:
    """Return the last thread of this channel, else a thread with the same function, else one with the same name."""
    progress = view.progress.get(operation_id.channel)
    threads = progress.threads if progress is not None else ()
    stacks = _stacks(view)
    by_id = {stack.thread: stack for stack in stacks}
    known = next((by_id[thread] for thread in reversed(threads) if thread in by_id), None)
    if known is None:
        callers = _due_callers(world, view, operation_id)
        known = next((stack for stack in stacks if callers and caller_of(stack) in callers), None)
    if known is None and not threads:
        names = _names_of_waiting(world, operation_id)
        known = next((stack for stack in stacks if stack.name in names), None)
    return known


def _due_callers(world: WorldSnapshot, view: RankView, operation_id: OperationId) -> set[str]:
    """Return the functions that should enter an operation, from this rank's history and the calls of other ranks."""
    progress = view.progress.get(operation_id.channel)
    own = {caller for caller in progress.callers if caller} if progress is not None else set[str]()
    operations = (other.at(operation_id) for other in world.ranks.values())
    others = {operation.caller for operation in operations if operation is not None and operation.caller}
    return (own & others) or own or others


def caller_of(stack: ThreadStack) -> str:
    """Return the function run by a thread, as in `CallerName`; '' if its stack is too short."""
    if stack.name == MAIN_THREAD:
        return MAIN_THREAD
    frames = [
        (priority, frame) for frame in reversed(stack.frames) if (priority := _caller_priority(frame)) is not None
    ]
    if not frames:
        return ""
    _, outer = min(frames, key=lambda candidate: candidate[0])
    return name_caller(outer.function, outer.file)


def _caller_priority(frame: CallSiteName) -> int | None:
    """Return the priority of a frame for naming a thread's function, 0 the highest; None for others."""
    match owner_of(frame.file):
        case FrameOwner.USER:
            return 0
        case FrameOwner.PACKAGE | FrameOwner.TORCH:
            return 1
        case FrameOwner.OTEL_TORCHDIST | FrameOwner.STANDARD_LIBRARY:
            return None


def _names_of_waiting(world: WorldSnapshot, operation_id: OperationId) -> set[str]:
    names: set[str] = set()
    for view in world.ranks.values():
        operation = view.at(operation_id)
        if operation is not None:
            names |= {stack.name for stack in _stacks(view) if stack.thread == operation.record.thread}
    return names - {""}


def _stacks(view: RankView) -> tuple[ThreadStack, ...]:
    return view.stacks.newest[0] if view.stacks is not None else ()


def _is_busy(stack: ThreadStack) -> bool:
    return any(owner_of(frame.file).is_of_program for frame in stack.frames)


def _waits_for_threads(stack: ThreadStack) -> bool:
    """Return whether a thread waits for other threads of its process, which its frames do not name."""
    inner = next(iter(stack.frames), None)
    is_in_loader = any(_LOADER.search(frame.file) for frame in stack.frames)
    return inner is not None and bool(_FOR_THREADS.search(inner.file)) and not is_in_loader


# --- recorded stacks --------------------------------------------------------------------------------------------------
# Stacks that a rank wrote because another process requested them.


_OF_ANY_REQUEST: Final = 0


class RecordedStacks:
    """The latest stacks of one rank, written by itself or on a signal. Requests nothing."""

    def __init__(self, tape: Path, owner: int | None = None) -> None:
        """Read the files beside a tape.

        Args:
            tape: The tape.
            owner: The user who must own the files; None for any.
        """
        self._tape = tape
        self._owner = owner
        self._of_threads = _File(stacks_path(tape))
        self._of_signal = _File(offer_path(tape))
        self._newest: Stacks | None = None

    def shown_in(self, view: RankView) -> RankView:
        """Add the stacks to a view if they are newer than the rank's last record.

        `Stacks.asked_ns` becomes the time at which they were written.
        """
        if any([self._of_threads.has_changed(), self._of_signal.has_changed()]):
            self._newest = self._read()
        if self._newest is None:
            return view
        written_ns = self._newest.asked_ns - view.wall_offset_ns
        if written_ns < last_record_ns(view):
            return view
        return dataclasses.replace(view, stacks=dataclasses.replace(self._newest, asked_ns=written_ns))

    def _read(self) -> Stacks | None:
        """Return the newer stacks, written by the rank or on a signal, with their wall-clock time."""
        newest: list[Stacks] = []
        threads = read_stacks(self._tape, _OF_ANY_REQUEST, self._owner)
        if threads is not None:
            newest.append(Stacks(self._of_threads.written_ns, tuple(threads)))
        frames = last_stack(offer_path(self._tape), self._owner)
        if frames:
            newest.append(Stacks(self._of_signal.written_ns, (ThreadStack(0, "", frames),), by_signal=True))
        return max(newest, key=lambda stacks: stacks.asked_ns, default=None)


class _File:
    """Detects changes to a file that is replaced or grows.

    Attributes:
        written_ns: Wall-clock time of the last known change; 0 without a file.
    """

    def __init__(self, path: Path) -> None:
        self.written_ns = 0
        self._path = path
        self._size = 0

    def has_changed(self) -> bool:
        """Return whether the file has changed since the last check."""
        before = self.written_ns, self._size
        try:
            facts = os.stat(self._path)
        except OSError:
            return False
        self.written_ns, self._size = facts.st_mtime_ns, facts.st_size
        return before != (self.written_ns, self._size)


def last_record_ns(view: RankView) -> int:
    """Return the monotonic time of the newest record on a rank's tape, apart from heartbeats."""
    records = [operation.record for operation in view.open]
    times = [view.created_ns]
    for record in records:
        times += [record.entered_ns, record.returned_ns or 0, record.wait_entered_ns or 0, record.wait_returned_ns or 0]
    if view.last is not None:
        times.append(view.last.record.completed_ns or 0)
    return max(times)
