"""Finds the critical path of runs while they run: of their newest steps, now and then, on a thread of its own.

The agent that judges a run asks those of the other nodes for the calls of the same steps. A path costs processor time,
so the next one is due only when a hundred times as long has passed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist import guard
from otel_torchdist.agent.path_watch.child import MOST_CALLS, Child, ChildError, Measured, NodeCalls
from otel_torchdist.agent.path_watch.findings import HELD_S, SlowParts
from otel_torchdist.agent.path_watch.steps import StepRange
from otel_torchdist.analysis.parallelism.calls import FIRST_STEADY
from otel_torchdist.judge.stall.events import Event
from otel_torchdist.judge.stall.findings import slow
from otel_torchdist.judge.stall.findings.slow import PathMeasured
from otel_torchdist.model.finding import JudgedWorld
from otel_torchdist.model.snapshot import WorldSnapshot

MOST_STEPS: Final = 16
LEAST_STEPS: Final = 8
"""A cause needs several steps to differ from chance."""
ANSWER_S: Final = 10.0
_MAX_EVENTS: Final = 256

AskOthers = Callable[[int, StepRange], Sequence[NodeCalls]]
"""From a run and steps to the calls of other nodes."""

_logger = logging.getLogger("otel_torchdist")


@dataclass(frozen=True, slots=True)
class Pace:
    """How often paths are looked for.

    Attributes:
        look_s: Seconds between two looks at whether one is due.
        first_wait_s: Seconds between the first two paths of a run, at least; then twice as long each time.
        longest_wait_s: Seconds between two paths of a run that are always enough.
        share: Share of one core that paths may take on a node.
        credit_s: Processor time that may be saved up, so that the first paths come soon.
        held_s: Seconds for which something must have been slow before it is reported.
    """

    look_s: float = 1.0
    first_wait_s: float = 5.0
    longest_wait_s: float = 30.0
    share: float = 0.01
    credit_s: float = 2.0
    held_s: float = HELD_S


USUAL: Final = Pace()


@dataclass(frozen=True, slots=True)
class RunToWatch:
    """A run that this agent judges.

    Attributes:
        agent_id: Its id, see `Incident`.
        world: All ranks of the run.
        tapes: Those of this node's ranks.
    """

    agent_id: int
    world: WorldSnapshot
    tapes: tuple[Path, ...]

    @property
    def ended_step(self) -> int:
        """The newest step that all ranks have ended."""
        return min((view.step for view in self.world.ranks.values()), default=0) - 1

    @property
    def members(self) -> frozenset[int]:
        """All members of its groups, seen or not."""
        groups = (group for view in self.world.ranks.values() for group in view.groups.values())
        return frozenset(rank for group in groups for rank in group.members)


@dataclass(slots=True)
class _Run:
    """What is remembered of a run.

    Attributes:
        steps: How many steps are looked at, at most; fewer than `LEAST_STEPS` if even these have too many calls.
        last_step: The last step of its last path.
        looked_at: When that was looked for, in monotonic seconds.
        wait_s: Seconds from then to the next one, at least.
        parts: What is slow in it.
    """

    wait_s: float
    parts: SlowParts
    steps: int = MOST_STEPS
    last_step: int = FIRST_STEADY
    looked_at: float = float("-inf")

    def due(self, run: RunToWatch, now: float) -> StepRange | None:
        """The steps to look at now, all of them new; None if it is not time yet."""
        last = run.ended_step
        first = max(last - self.steps, self.last_step) + 1
        if last - first + 1 < LEAST_STEPS or now - self.looked_at < self.wait_s:
            return None
        return StepRange(first, last)

    def look(self, steps: StepRange, now: float, pace: Pace) -> None:
        """Note that these steps are looked at."""
        if self.looked_at > 0:
            self.wait_s = min(2 * self.wait_s, pace.longest_wait_s)
        self.last_step, self.looked_at = steps.last, now


class Credit:
    """Processor time that may be taken."""

    def __init__(self, pace: Pace, now: float) -> None:
        """Begin with what can be saved up at most."""
        self._pace = pace
        self._left_s, self._at = pace.credit_s, now

    def is_left(self, now: float) -> bool:
        """Whether there is any."""
        self._left_s = min(self._left_s + self._pace.share * (now - self._at), self._pace.credit_s)
        self._at = now
        return self._left_s > 0

    def take(self, seconds: float) -> None:
        """Note how much was taken; it may be more than there was."""
        self._left_s -= seconds


class PathWatch:
    """Watches the critical paths of runs.

    `update` and `events` belong to the thread that reads tapes; they take no time.
    """

    def __init__(self, ask_others: AskOthers, pace: Pace = USUAL) -> None:
        """Start the thread.

        Args:
            ask_others: Asks the agents of other nodes.
            pace: How often it looks.
        """
        self._pace = pace
        self._ask_others = ask_others
        self._runs: dict[int, _Run] = {}
        self._watched: Sequence[RunToWatch] = ()
        self._events: deque[Event] = deque(maxlen=_MAX_EVENTS)
        self._credit = Credit(pace, time.monotonic())
        self._child: Child | None = None
        self._stopping = threading.Event()
        threading.Thread(target=self._look_repeatedly, name="torchdist-paths", daemon=True).start()

    def update(self, runs: Sequence[RunToWatch]) -> None:
        """Take the runs that are to be watched from now on."""
        self._watched = runs

    def events(self) -> list[Event]:
        """Return what was found since the last call."""
        return [self._events.popleft() for _ in range(len(self._events))]

    def stop(self) -> None:
        """Stop, and give up a path that is being looked for."""
        self._stopping.set()
        child = self._child
        if child is not None:
            child.kill()

    def _look_repeatedly(self) -> None:
        while not self._stopping.wait(self._pace.look_s):
            with guard.guarded("the critical path"):
                self._look(time.monotonic())

    def _look(self, now: float) -> None:
        watched = {one.world.run: one for one in self._watched}
        self._runs = {
            run: self._runs.get(run) or _Run(self._pace.first_wait_s, SlowParts(self._pace.held_s)) for run in watched
        }
        if not self._credit.is_left(now):
            return
        for run in sorted(watched, key=lambda run: self._runs[run].looked_at):
            known = self._runs[run]
            steps = known.due(watched[run], now)
            if steps is not None:
                known.look(steps, now, self._pace)
                self._measure(watched[run], known, steps)
                return

    def _measure(self, run: RunToWatch, known: _Run, steps: StepRange) -> None:
        began = time.monotonic()
        try:
            self._child = Child(run.tapes, steps)
            found = self._child.path(self._ask_others(run.world.run, steps), run.members)
        except ChildError as error:
            _logger.debug("no critical path: %s", error)
            self._credit.take(time.monotonic() - began)  # at most that
            return
        finally:
            self._child = None
        self._credit.take(found.took_s)
        if found.calls > MOST_CALLS:
            known.steps //= 2
        self._events.extend(_events_of(found, run, known.parts))


def _events_of(found: Measured, run: RunToWatch, parts: SlowParts) -> list[Event]:
    if found.lengths is None:
        return []
    judged = JudgedWorld(run.world, run.world.run, run.agent_id)
    new = parts.update(found.parts, time.monotonic())
    return [
        PathMeasured(judged.run, found.lengths),
        *(slow.finding_of(part, judged) for part in new),
        *(slow.over_of(part, judged.run) for part in parts.gone),
    ]


class StepsOnRequest:
    """Answers other agents, which ask for the calls of some steps; one request at a time."""

    def __init__(self, answer_s: float = ANSWER_S, child: type[Child] = Child) -> None:
        """Know no run yet.

        Args:
            answer_s: How long an answer may take.
            child: The process that reads the calls.
        """
        self._answer_s, self._child = answer_s, child
        self._tapes: dict[int, tuple[Path, ...]] = {}
        self._busy = threading.Lock()

    def update(self, tapes: dict[int, tuple[Path, ...]]) -> None:
        """Take the tapes of each run."""
        self._tapes = tapes

    def answer(self, run_id: int, body: bytes) -> bytes | None:
        """Answer on any thread; None if the request is not one, or another one is being answered."""
        steps, tapes = StepRange.from_bytes(body), self._tapes.get(run_id)
        if steps is None or not tapes or not self._busy.acquire(blocking=False):
            return None
        try:
            return self._child(tapes, steps).segments(self._answer_s)
        except ChildError as error:
            _logger.debug("no answer about steps: %s", error)
            return None
        finally:
            self._busy.release()
