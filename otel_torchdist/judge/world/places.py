"""Where a rank is in its code, as far as is known: which thread, which frame, and how a stack is formatted."""

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
from otel_torchdist.model.occupations import CheckpointView, ChildWait
from otel_torchdist.model.snapshot import RankView
from otel_torchdist.model.stacks import Stacks, ThreadStack
from otel_torchdist.node.processes.state import HEARTBEAT_LATE_NS

_MAIN_THREAD: Final = "MainThread"


class PlaceSource(enum.Enum):
    """How a place was determined."""

    STACK = "stack"
    """The rank's own thread wrote its stack on request."""
    SIGNAL = "signal"
    """A signal took the stack of one thread, while something held the GIL."""
    OPEN_OPERATION = "open operation"
    """The call site of the operation that the rank is in."""
    EXCEPTION = "exception"
    """The line that has raised the exception that ended it."""
    LAST_OPERATION = "last operation"
    """The call site of the operation that ended last; the rank has moved on since."""
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
    """Where a rank is.

    Attributes:
        source: How the place was determined.
        frame: The line of its code; None if there is none.
        operation: The operation that `frame` called, or the type of the exception; '' where the frame is of a stack.
        stacktrace: Its whole stack as text, or ''.
        message: What the exception says that ended it; '' for nothing.
        frozen_for_ns: How long its Python threads have not run; None when they run or are gone.
        child: The child process that it waits for; None for none.
        child_for_ns: For how long that has been doing what it does.
        checkpoint: The checkpoint that it is in; None for none.
        checkpoint_for_ns: For how long it has been in that, or in its stage.
        stopped: How the kernel prevents its process from running, see `Stopped.state`; '' when it does not.
        remote: The remote procedure call in which it waits; None for none.
        remote_for_ns: For how long that has been as it is.
        instead: The operation that it is in while another rank waits for its side of a message; None for none.
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
    """Where a rank is, and whether it can run.

    Args:
        view: The rank.
        operation: The open operation of interest that it is in, if any.
        now_ns: When the snapshot was taken.
        thread: The thread of interest if it is in no operation, as far as that is known.
    """
    place = _place_of(view, operation, now_ns, thread)
    if view.child is not None and place.source is PlaceSource.STACK:
        place = replace(place, child=view.child, child_for_ns=max(now_ns - view.child.since_ns, 0))
    return replace(place, stopped=view.stopped.state) if view.stopped is not None else place


def in_checkpoint(place: RankPlace, view: RankView, checkpoint: CheckpointView | None, now_ns: int) -> RankPlace:
    """The place of a rank, with the checkpoint that it is in, or was when its process ended."""
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
    """Whether a stack shows where a thread is: no call of its own, or of a thread without a stack, is newer.

    Autograd's threads for devices run no Python: the thread that is in `backward` waits for them.
    """
    listed = {one.thread for one in stacks.threads or ()} - {thread.thread}
    calls = (operation.record for operation in (*view.open, view.last) if operation is not None)
    own = [record for record in calls if record.thread not in listed]
    entered = [max(record.entered_ns, record.wait_entered_ns or 0) for record in own]
    left = [record.completed_ns or 0 for record in own if record.is_blocking]
    return max([*entered, *left], default=0) <= stacks.asked_ns


def _frame_of(thread: ThreadStack, threads: Sequence[ThreadStack]) -> CallSiteName | None:
    """The frame to show for a thread: the main thread's where it runs nothing of the user's, as in a pool."""
    frames = [thread.frames, *(one.frames for one in threads if one.name == _MAIN_THREAD)]
    found = [user_frame(one) for one in frames if _has_user(one)]
    return found[0] if found else user_frame(thread.frames)


def _has_user(frames: Iterable[CallSiteName]) -> bool:
    return any(owner_of(frame.file, frame.function) is FrameOwner.USER for frame in frames)


def _called(operation: OperationView) -> str:
    return f"{operation.name} ({operation.label})" if operation.label else operation.name


MAX_STACK_TEXT: Final = 16_384


def thread_to_show(threads: Sequence[ThreadStack], native_id: int | None) -> ThreadStack | None:
    """The thread that an open operation names, else the main thread, else the first one.

    Args:
        threads: All threads of a process.
        native_id: `Operation.thread` of the operation that the rank is in; None when it is in none.
    """
    named = (thread for thread in threads if native_id and thread.thread == native_id)
    main = (thread for thread in threads if thread.name == _MAIN_THREAD)
    return next(itertools.chain(named, main, threads), None)


def user_frame(frames: Sequence[CallSiteName]) -> CallSiteName | None:
    """The frame to show for a thread; see `innermost`. It says through which function of a library it waits.

    Args:
        frames: Innermost first.
    """
    place = innermost((frame.file, frame.function) for frame in frames)
    if place is None:
        return None
    inside = (one for one in frames[:place] if owner_of(one.file, one.function) is FrameOwner.PACKAGE)
    called = next(inside, None)
    through = f"{package_of(called.file)}.{called.function}" if called is not None else ""
    return replace(frames[place], through=through)


def stack_text(frames: Sequence[CallSiteName]) -> str:
    """Format a stack as Python does, most recent call last, with runs of torch's and our own frames folded into a line.

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
