"""The place of a rank: the line of code that it executes, its stack, and the evidence for them."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from otel_torchdist.judge.world.occupations import RemoteWait
from otel_torchdist.model.calls import OperationView
from otel_torchdist.model.code_owner import FrameOwner, innermost, owner_of, package_of
from otel_torchdist.model.kinds import TapeState
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.rank_state.occupations import CheckpointView, ChildWait
from otel_torchdist.model.rank_state.stacks import Stacks, ThreadStack
from otel_torchdist.model.snapshot import RankView
from otel_torchdist.node.processes.state import HEARTBEAT_LATE_NS

_MAIN_THREAD: Final = "MainThread"


class PlaceSource(enum.Enum):
    """The evidence for the line that a rank executes."""

    STACK = "stack"
    """The rank's own thread wrote its stack on request."""
    SIGNAL = "signal"
    """A signal took one thread's stack while the GIL was held."""
    OPEN_OPERATION = "open operation"
    """The call site of the open operation."""
    EXCEPTION = "exception"
    """The line that raised the exception which ended the rank."""
    LAST_OPERATION = "last operation"
    """The call site of the last ended operation. The rank has left that line since then."""
    NOTHING = "nothing"

    @property
    def is_stack(self) -> bool:
        """Whether a stack of the rank was taken."""
        match self:
            case PlaceSource.STACK | PlaceSource.SIGNAL:
                return True
            case PlaceSource.OPEN_OPERATION | PlaceSource.EXCEPTION | PlaceSource.LAST_OPERATION | PlaceSource.NOTHING:
                return False


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The line of code that a rank executes, and why it does not continue from there.

    Attributes:
        source: The evidence for `frame`.
        frame: The line of the user's code; None if unknown.
        operation: The operation called by `frame`, or the type of the exception; '' if the frame is from a stack.
        stacktrace: The whole stack as text, or ''.
        message: The message of the exception that ended the rank; '' if there is none.
        frozen_for_ns: Time for which its Python threads have not run; None if they run, or if the process is gone.
        child: The child process it waits for, or None.
        child_for_ns: Time for which the child has been in its state.
        checkpoint: The checkpoint it is in, or None.
        checkpoint_for_ns: Time in the checkpoint, or in its stage.
        stopped: The kernel state that keeps the process from running, see `Stopped.state`; '' if it can run.
        remote: The remote procedure call in which it waits, or None.
        remote_for_ns: Time for which the remote call has been in its state.
        instead: For `unmatched`, the operation in which the rank waits instead of the awaited send or receive, or None.
    """

    source: PlaceSource
    frame: CallSiteName | None
    operation: str = ""
    stacktrace: str = ""
    message: str = ""
    frozen_for_ns: int | None = None
    stopped: str = ""
    child: ChildWait | None = None
    child_for_ns: int = 0
    checkpoint: CheckpointView | None = None
    checkpoint_for_ns: int = 0
    remote: RemoteWait | None = None
    remote_for_ns: int = 0
    instead: OperationView | None = None


def place_of(
    view: RankView, operation: OperationView | None, now_ns: int, thread: ThreadStack | None = None
) -> RankPlace:
    """Return the place of a rank, and whether its process can run.

    Args:
        view: The rank.
        operation: The open operation of interest that it is in, or None.
        now_ns: When the snapshot was taken.
        thread: The thread of interest if the rank is in no operation; None if unknown.
    """
    place = _place_of(view, operation, now_ns, thread)
    if view.child is not None and place.source is PlaceSource.STACK:
        place = replace(place, child=view.child, child_for_ns=max(now_ns - view.child.since_ns, 0))
    return replace(place, stopped=view.stopped.state) if view.stopped is not None else place


def in_checkpoint(place: RankPlace, view: RankView, checkpoint: CheckpointView | None, now_ns: int) -> RankPlace:
    """Return a rank's place with its current checkpoint, or the checkpoint in which its process ended."""
    if checkpoint is None:
        return place
    until_ns = view.death.at_ns if view.death is not None else view.gone_since_ns or now_ns
    lasted_ns = max(min(until_ns, now_ns) - checkpoint.since_ns, 0)
    return replace(place, checkpoint=checkpoint, checkpoint_for_ns=lasted_ns)


def _place_of(view: RankView, operation: OperationView | None, now_ns: int, chosen: ThreadStack | None) -> RankPlace:
    inside = operation or next((candidate for candidate in view.open if candidate.record.is_blocking), None)
    if view.state is TapeState.FAILED and view.raised is not None and view.raised.site is not None:
        return RankPlace(PlaceSource.EXCEPTION, view.raised.site, view.raised.type, message=view.raised.message)
    silence_ns = now_ns - view.heartbeat_ns
    frozen_for_ns = silence_ns if view.alive and silence_ns > HEARTBEAT_LATE_NS else None
    if view.alive and view.stacks is not None and view.stacks.threads:
        thread = chosen or thread_to_show(view.stacks.threads, inside.record.thread if inside else None)
        if thread is not None and thread.frames and _is_current(view, view.stacks, thread):
            source = PlaceSource.SIGNAL if view.stacks.by_signal else PlaceSource.STACK
            frame = _frame_of(thread, view.stacks.threads)
            return RankPlace(source, frame, "", stack_text(thread.frames), frozen_for_ns=frozen_for_ns)
    if inside is not None:
        return RankPlace(PlaceSource.OPEN_OPERATION, inside.call_site, _called(inside), frozen_for_ns=frozen_for_ns)
    if view.last is not None:
        return RankPlace(
            PlaceSource.LAST_OPERATION, view.last.call_site, _called(view.last), frozen_for_ns=frozen_for_ns
        )
    return RankPlace(PlaceSource.NOTHING, None, frozen_for_ns=frozen_for_ns)


def _is_current(view: RankView, stacks: Stacks, thread: ThreadStack) -> bool:
    """Return whether a stack is newer than the calls of its thread, and of threads without a stack.

    Autograd's device threads run no Python; the thread that is in `backward` waits for them.
    """
    listed = {other.thread for other in stacks.threads or ()} - {thread.thread}
    calls = (operation.record for operation in (*view.open, view.last) if operation is not None)
    own = [record for record in calls if record.thread not in listed]
    entered = [max(record.entered_ns, record.wait_entered_ns or 0) for record in own]
    left = [record.completed_ns or 0 for record in own if record.is_blocking]
    return max([*entered, *left], default=0) <= stacks.asked_ns


def _frame_of(thread: ThreadStack, threads: Sequence[ThreadStack]) -> CallSiteName | None:
    """Return the frame to show for a thread; the main thread's if this one runs no user code, as in a pool."""
    frames = [thread.frames, *(other.frames for other in threads if other.name == _MAIN_THREAD)]
    user_frames = [user_frame(other) for other in frames if _has_user(other)]
    return user_frames[0] if user_frames else user_frame(thread.frames)


def _has_user(frames: Iterable[CallSiteName]) -> bool:
    return any(owner_of(frame.file, frame.function) is FrameOwner.USER for frame in frames)


def _called(operation: OperationView) -> str:
    return f"{operation.name} ({operation.label})" if operation.label else operation.name


MAX_STACK_TEXT: Final = 16_384


def thread_to_show(threads: Sequence[ThreadStack], native_id: int | None) -> ThreadStack | None:
    """Return the thread named by an open operation, else the main thread, else the first thread.

    Args:
        threads: All threads of a process.
        native_id: `Operation.thread` of the rank's open operation; None if it is in none.
    """
    named = (thread for thread in threads if native_id and thread.thread == native_id)
    main = (thread for thread in threads if thread.name == _MAIN_THREAD)
    return next(itertools.chain(named, main, threads), None)


def user_frame(frames: Sequence[CallSiteName]) -> CallSiteName | None:
    """Return the frame to show for a thread, with the library function through which it waits; see `innermost`.

    Args:
        frames: Innermost first.
    """
    index = innermost((frame.file, frame.function) for frame in frames)
    if index is None:
        return None
    package_frames = (frame for frame in frames[:index] if owner_of(frame.file, frame.function) is FrameOwner.PACKAGE)
    called = next(package_frames, None)
    through = f"{package_of(called.file)}.{called.function}" if called is not None else ""
    return replace(frames[index], through=through)


def stack_text(frames: Sequence[CallSiteName]) -> str:
    """Format a stack like Python, most recent call last. Runs of torch's and our own frames become one line.

    Args:
        frames: Innermost first.
    """
    lines: list[str] = []
    for owner, group in itertools.groupby(reversed(frames), lambda frame: owner_of(frame.file, frame.function)):
        lines += _lines(owner, list(group))
    # The innermost frames matter most.
    return "\n".join(lines)[-MAX_STACK_TEXT:]


def _lines(owner: FrameOwner, frames: list[CallSiteName]) -> Iterable[str]:
    if _is_folded(owner) and len(frames) > 1:
        last = frames[-1]
        return [f"  [{len(frames)} frames of {owner.value}, the last: {last.function} in {last.file}:{last.line}]"]
    return [f'  File "{frame.file}", line {frame.line}, in {frame.function}' for frame in frames]


def _is_folded(owner: FrameOwner) -> bool:
    match owner:
        case FrameOwner.TORCH | FrameOwner.OTEL_TORCHDIST:
            return True
        case FrameOwner.USER | FrameOwner.PACKAGE | FrameOwner.STANDARD_LIBRARY:
            return False
