"""A job that is idle outside of operations: all ranks are alive, and none calls or waits in an operation.

No rank is to blame, since none holds another up. Busy ranks do not count as idle: they evaluate, compile or prepare
data. Ranks that wait for input or requests, in an interpreter, a debugger or a server's loop, do not count either.
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
from otel_torchdist.model.rank_state.stacks import ThreadStack
from otel_torchdist.model.snapshot import RankView, WorldSnapshot

MIN_BUSY_SHARE: Final = 0.05
"""Minimum share of a core used by a busy rank. Polling for a file ten times a second takes 0.01."""
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
    """The line at which a rank is idle.

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
        places: By rank, the line at which it is idle.
    """

    since_ns: int
    usual_ns: int
    places: Mapping[int, IdlePlace]

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks of the run, ascending."""
        return tuple(sorted(self.places))

    def is_long(self, lasted_ns: int, min_ns: int) -> bool:
        """Return whether this duration is unusual for the job; always False if `min_ns` is 0."""
        return bool(min_ns) and lasted_ns >= max(min_ns, USUAL_GAPS * self.usual_ns)


def last_called_ns(view: RankView) -> int:
    """Return when a rank last called an operation or stepped; before the first call, when its tape began."""
    return max(view.pace.called_ns, view.created_ns)


def idle_of(world: WorldSnapshot, places: Mapping[int, IdlePlace]) -> Idle | None:
    """Return the idle state of a run if every rank is seen and idle now; None otherwise.

    Args:
        world: The snapshot.
        places: By tape nonce, the line at which the rank is idle; see `idle_place_of`.
    """
    views = world.in_order
    members = {rank for view in views for group in view.groups.values() for rank in group.members}
    if len(views) < 2 or not members <= world.ranks.keys() or not all(_may_be_idle(view, world) for view in views):
        return None
    by_rank = {view.rank: places[view.nonce] for view in views if view.nonce in places}
    if len(by_rank) < len(views):
        return None
    return Idle(max(map(last_called_ns, views)), max(view.pace.longest_gap_ns for view in views), by_rank)


def _may_be_idle(view: RankView, world: WorldSnapshot) -> bool:
    """Return whether a live rank is idle: in no operation or activity, not busy, and without an announced wait."""
    lives = view.alive and view.state is TapeState.RUNNING and view.stopped is None and not view.fell_silent
    is_busy = view.pace.busy is not None and view.pace.busy >= MIN_BUSY_SHARE
    is_elsewhere = bool(view.open) or bool(view.checkpoints.open) or view.worker is not None
    return lives and not is_busy and not is_elsewhere and not expects(view, world)


def idle_place_of(view: RankView) -> IdlePlace | None:
    """Return where a rank is idle, by a stack newer than its last call; None if it compiles or waits for requests."""
    stacks = view.stacks
    if stacks is None or not stacks.threads or stacks.asked_ns < last_called_ns(view):
        return None
    main = next((thread for thread in stacks.threads if thread.name == _MAIN_THREAD), None)
    if main is None or _waits_for_request(main) or is_compiling(main):
        return None
    frame = user_frame(main.frames)
    return IdlePlace(frame, _called_by(main, frame)) if frame is not None else None


def _waits_for_request(thread: ThreadStack) -> bool:
    """Return whether the innermost library frames wait for input, a request or an event."""
    waits_for_input = False
    for frame in thread.frames:
        match owner_of(frame.file):
            case FrameOwner.STANDARD_LIBRARY:
                waits_for_input = waits_for_input or bool(
                    _STANDARD_WAITS.search(f"{frame.file}:{frame.function.rpartition('.')[2]}")
                )
            case FrameOwner.PACKAGE:
                return waits_for_input or bool(_SERVERS.search(frame.file))
            case FrameOwner.TORCH:
                return False  # a DataLoader waits for its workers, not for input
            case FrameOwner.USER:
                return waits_for_input
            case FrameOwner.OTEL_TORCHDIST:
                continue
    return True  # no frame of the user's code is on the stack


def _called_by(thread: ThreadStack, frame: CallSiteName) -> str:
    """Return the library function called by a line."""
    lines = [(called.file, called.line, called.function) for called in thread.frames]
    line = frame.file, frame.line, frame.function
    index = lines.index(line) if line in lines else 0
    return thread.frames[index - 1].function if index else ""
