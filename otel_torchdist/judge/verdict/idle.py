"""A job that stands still outside of operations: all ranks are alive, wait for none of each other, and call nothing.

No rank is to blame, for none holds another up. Ranks that work are not idle, however long they call nothing: an
evaluation, a compilation, data that is prepared. Nor is a rank that waits for somebody to ask it for something: at the
prompt of an interpreter or a debugger, in a server's loop.
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
"""The share of a core from which on a rank works: to look ten times a second whether a file is there takes 0.01."""
USUAL_GAPS: Final = 10
"""A rank stands still only when it has called nothing for this many times the longest time that it took before."""
_MAIN_THREAD: Final = "MainThread"
# Where Python itself waits for somebody: a line of input, a request, an event.
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
    """Where a rank stands.

    Attributes:
        frame: The line of its code.
        waits_in: The function of a library that this line has called, `FileBaton.wait`; '' for none.
    """

    frame: CallSiteName
    waits_in: str = ""


@dataclass(frozen=True, slots=True)
class Idle:
    """A job that stands still outside of operations.

    Attributes:
        since_ns: When a rank last called an operation or stepped.
        usual_ns: The longest time that a rank took to its next call before.
        stands: By rank, where it stands.
    """

    since_ns: int
    usual_ns: int
    stands: Mapping[int, IdlePlace]

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks of the run, ascending."""
        return tuple(sorted(self.stands))

    def is_long(self, lasted_ns: int, least_ns: int) -> bool:
        """Whether so long a time is unusual for this job; never, if `least_ns` is 0."""
        return bool(least_ns) and lasted_ns >= max(least_ns, USUAL_GAPS * self.usual_ns)


def last_called_ns(view: RankView) -> int:
    """When a rank last called an operation or stepped; before that, when its tape began."""
    return max(view.pace.called_ns, view.created_ns)


def idle_of(world: WorldSnapshot, stands: Mapping[int, IdlePlace]) -> Idle | None:
    """Return how a run stands still, if all of its ranks are seen, and all do at this moment; else None.

    Args:
        world: The snapshot.
        stands: Where ranks stand, by the nonce of the tape; see `stand_of`.
    """
    views = world.in_order
    members = {rank for view in views for group in view.groups.values() for rank in group.members}
    if len(views) < 2 or not members <= world.ranks.keys() or not all(_may_stand(view, world) for view in views):
        return None
    found = {view.rank: stands[view.nonce] for view in views if view.nonce in stands}
    if len(found) < len(views):
        return None
    return Idle(max(map(last_called_ns, views)), max(view.pace.longest_gap_ns for view in views), found)


def _may_stand(view: RankView, world: WorldSnapshot) -> bool:
    """Whether a rank lives, is in no operation and no activity, and neither expects to wait nor works."""
    lives = view.alive and view.state is TapeState.RUNNING and view.stopped is None and not view.fell_silent
    is_busy = view.pace.busy is not None and view.pace.busy >= WORKS
    is_elsewhere = bool(view.open) or bool(view.checkpoints.open) or view.worker is not None
    return lives and not is_busy and not is_elsewhere and not expects(view, world)


def stand_of(view: RankView) -> IdlePlace | None:
    """Where a rank stands, by a stack written since its last call; None if it waits to be asked, or compiles."""
    stacks = view.stacks
    if stacks is None or not stacks.threads or stacks.asked_ns < last_called_ns(view):
        return None
    main = next((thread for thread in stacks.threads if thread.name == _MAIN_THREAD), None)
    if main is None or _waits_to_be_asked(main) or is_compiling(main):
        return None
    frame = user_frame(main.frames)
    return IdlePlace(frame, _called_by(main, frame)) if frame is not None else None


def _waits_to_be_asked(thread: ThreadStack) -> bool:
    """Whether the innermost frames, as far as they are not the program's, wait for input, a request or an event."""
    asks = False
    for frame in thread.frames:
        match owner_of(frame.file):
            case FrameOwner.STANDARD_LIBRARY:
                asks = asks or bool(_STANDARD_WAITS.search(f"{frame.file}:{frame.function.rpartition('.')[2]}"))
            case FrameOwner.PACKAGE:
                return asks or bool(_SERVERS.search(frame.file))
            case FrameOwner.TORCH:
                return False  # a DataLoader waits for its workers, which is no input
            case FrameOwner.USER:
                return asks
            case FrameOwner.OTEL_TORCHDIST:
                continue
    return True  # nothing of a program is under way


def _called_by(thread: ThreadStack, frame: CallSiteName) -> str:
    """The function of a library that a line has called."""
    line = frame.file, frame.line, frame.function
    at = next((at for at, one in enumerate(thread.frames) if (one.file, one.line, one.function) == line), 0)
    return thread.frames[at - 1].function if at else ""
