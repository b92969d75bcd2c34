"""A job that is idle outside of operations: all ranks are alive, none waits for another, and none calls anything.

No rank is to blame, for none holds another up. Working ranks are not idle, however long they call nothing: they
evaluate, compile or prepare data. Nor is a rank idle that waits to be asked, at the prompt of an interpreter or
debugger, or in a server's loop.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from otel_torchdist.judge.verdict.compiling import is_compiling
from otel_torchdist.judge.verdict.rules import expects
from otel_torchdist.judge.world.places import FrameOwner, owner_of, user_frame
from otel_torchdist.model.kinds import TapeState
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.model.stacks import ThreadStack

WORKS: Final = 0.05
"""Share of a core from which a rank counts as working. Polling for a file ten times a second takes 0.01."""
USUAL_GAPS: Final = 10
"""A rank counts as idle once it has been silent for this multiple of its longest earlier gap between calls."""
_MAIN_THREAD: Final = "MainThread"
# Functions of Python in which a thread waits for input, a request or an event.
_STANDARD_WAITS: Final = re.compile(
    r"/(code|pdb|bdb|cmd|codeop|socketserver)\.py:|/_pyrepl/"
    r"|/asyncio/(base_events|runners)\.py:(run_forever|_run_once|run)$|/(queue|multiprocessing/queues)\.py:get$"
    r"|/multiprocessing/connection\.py:(accept|wait|recv|recv_bytes|poll)$|/socket\.py:accept$"
)
_SERVERS: Final = re.compile(
    r"/(site|dist)-packages/(ipykernel|IPython|prompt_toolkit|zmq|tornado|uvicorn|uvloop|gunicorn|ray|grpc|debugpy"
    r"|pydevd|_pydevd_bundle|_pydev_bundle|pudb|ipdb|flask|werkzeug|aiohttp)/"
)


@dataclass(frozen=True, slots=True)
class IdlePlace:
    """The place where a rank is idle.

    Attributes:
        frame: The line of the user's code.
        waits_in: The library function called by that line, such as `FileBaton.wait`; '' if none.
    """

    frame: CallSiteName
    waits_in: str = ""


@dataclass(frozen=True, slots=True)
class Idle:
    """A job that is idle outside of operations.

    Attributes:
        since_ns: When a rank last called an operation or stepped.
        usual_ns: The longest earlier gap between two calls of a rank.
        stands: By rank, the place where it is idle.
    """

    since_ns: int
    usual_ns: int
    stands: Mapping[int, IdlePlace]

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks of the run, ascending."""
        return tuple(sorted(self.stands))

    def is_long(self, lasted_ns: int, least_ns: int) -> bool:
        """Return whether this duration is unusual for the job; always False if `least_ns` is 0."""
        return bool(least_ns) and lasted_ns >= max(least_ns, USUAL_GAPS * self.usual_ns)


def last_called_ns(view: RankView) -> int:
    """Return when a rank last called an operation or stepped; before the first call, when its tape began."""
    return max(view.pace.called_ns, view.created_ns)


def idle_of(world: WorldSnapshot, stands: Mapping[int, IdlePlace]) -> Idle | None:
    """Return the idle state of a run if every rank is seen and idle now; None otherwise.

    Args:
        world: The snapshot.
        stands: By tape nonce, the place where a rank is idle; see `stand_of`.
    """
    views = world.in_order
    members = {rank for view in views for group in view.groups.values() for rank in group.members}
    if len(views) < 2 or not members <= world.ranks.keys() or not all(_may_stand(view, world) for view in views):
        return None
    places = {view.rank: stands[view.nonce] for view in views if view.nonce in stands}
    if len(places) < len(views):
        return None
    return Idle(max(map(last_called_ns, views)), max(view.pace.longest_gap_ns for view in views), places)


def _may_stand(view: RankView, world: WorldSnapshot) -> bool:
    """Return whether a live rank is in no operation and no activity, and neither expects to wait nor works."""
    lives = view.alive and view.state is TapeState.RUNNING and view.stopped is None and not view.fell_silent
    is_busy = view.pace.busy is not None and view.pace.busy >= WORKS
    is_elsewhere = bool(view.open) or bool(view.checkpoints.open) or view.worker is not None
    return lives and not is_busy and not is_elsewhere and not expects(view, world)


def stand_of(view: RankView) -> IdlePlace | None:
    """Return where a rank is idle, from a stack newer than its last call; None if it waits to be asked, or compiles."""
    stacks = view.stacks
    if stacks is None or not stacks.threads or stacks.asked_ns < last_called_ns(view):
        return None
    main = next((thread for thread in stacks.threads if thread.name == _MAIN_THREAD), None)
    if main is None or _waits_to_be_asked(main) or is_compiling(main):
        return None
    frame = user_frame(main.frames)
    return IdlePlace(frame, _called_by(main, frame)) if frame is not None else None


def _waits_to_be_asked(thread: ThreadStack) -> bool:
    """Return whether the innermost library frames wait for input, a request or an event."""
    asks = False
    for frame in thread.frames:
        match owner_of(frame.file):
            case FrameOwner.STANDARD_LIBRARY:
                asks = asks or bool(_STANDARD_WAITS.search(f"{frame.file}:{frame.function.rpartition('.')[2]}"))
            case FrameOwner.PACKAGE:
                return asks or bool(_SERVERS.search(frame.file))
            case FrameOwner.TORCH:
                return False  # a DataLoader waits for its workers, not for input
            case FrameOwner.USER:
                return asks
            case FrameOwner.OTEL_TORCHDIST:
                continue
    return True  # no frame of the user's code is on the stack


def _called_by(thread: ThreadStack, frame: CallSiteName) -> str:
    """Return the library function called by a line."""
    line = frame.file, frame.line, frame.function
    at = next((at for at, one in enumerate(thread.frames) if (one.file, one.line, one.function) == line), 0)
    return thread.frames[at - 1].function if at else ""
