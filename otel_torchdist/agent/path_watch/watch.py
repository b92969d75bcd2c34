"""Measures the critical path of live runs from time to time, over their newest steps, on a separate thread.

The agent that judges a run asks the agents of the other nodes for the calls of the same steps. To stay below 1 % of a
core, the next path is due only after a hundred times the processor time of the last one.
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
from otel_torchdist.agent.path_watch.child import MAX_CALLS, Child, ChildError, MeasuredPath, NodeCalls
from otel_torchdist.agent.path_watch.findings import PERSISTENCE_S, SlowParts
from otel_torchdist.agent.path_watch.steps import StepRange
from otel_torchdist.analysis.parallelism.calls import FIRST_STEADY
from otel_torchdist.judge.stall.events import Event
from otel_torchdist.judge.stall.findings import slow
from otel_torchdist.judge.stall.findings.slow import PathMeasured
from otel_torchdist.model.reports.finding import JudgedWorld
from otel_torchdist.model.snapshot import WorldSnapshot

MAX_STEPS: Final = 16
MIN_STEPS: Final = 8
"""Minimum steps per path: over fewer steps, a cause cannot be distinguished from chance."""
ANSWER_S: Final = 10.0
_MAX_EVENTS: Final = 256

AskOthers = Callable[[int, StepRange], Sequence[NodeCalls]]
"""Asks for the calls of other nodes' ranks in a run's steps."""

_logger = logging.getLogger("otel_torchdist")


@dataclass(frozen=True, slots=True)
class Pace:
    """The schedule of measurements. Each measurement finds the critical path through the newest steps of a run.

    Attributes:
        check_s: Seconds between checks whether a measurement is due.
        first_wait_s: Minimum seconds between the first two measurements of a run; it doubles with each measurement.
        longest_wait_s: Upper bound of the doubled `first_wait_s`.
        share: Share of one core that measurements may take on a node.
        credit_s: Maximum unused processor time to save up, in seconds. A new agent has all of it, so it measures soon.
        persistence_s: Seconds for which a rank, node or stage must have been slow before it is reported.
    """

    check_s: float = 1.0
    first_wait_s: float = 5.0
    longest_wait_s: float = 30.0
    share: float = 0.01
    credit_s: float = 2.0
    persistence_s: float = PERSISTENCE_S


DEFAULT_PACE: Final = Pace()


@dataclass(frozen=True, slots=True)
class RunToWatch:
    """A run that this agent judges.

    Attributes:
        agent_id: Id of this agent; see `Incident`.
        world: All ranks of the run.
        tapes: Tapes of this node's ranks.
    """

    agent_id: int
    world: WorldSnapshot
    tapes: tuple[Path, ...]

    @property
    def ended_step(self) -> int:
        """Number of the newest step that all ranks have ended."""
        return min((view.step for view in self.world.ranks.values()), default=0) - 1

    @property
    def members(self) -> frozenset[int]:
        """All members of the run's groups, including ranks that no agent has seen."""
        groups = (group for view in self.world.ranks.values() for group in view.groups.values())
        return frozenset(rank for group in groups for rank in group.members)


@dataclass(slots=True)
class _RunState:
    """The state of one run's measurements.

    Attributes:
        wait_s: Minimum seconds from the last measurement to the next.
        parts: The slow ranks, nodes and stages of the run.
        steps: Maximum steps per path; below `MIN_STEPS` if even these have too many calls to analyze.
        last_step: Last step of the last path.
        measured_at: Monotonic time in seconds of the last measurement.
    """

    wait_s: float
    parts: SlowParts
    steps: int = MAX_STEPS
    last_step: int = FIRST_STEADY
    measured_at: float = float("-inf")

    def due(self, run: RunToWatch, now: float) -> StepRange | None:
        """Return the steps for the next path, all after the last path; None if no path is due yet."""
        last = run.ended_step
        first = max(last - self.steps, self.last_step) + 1
        if last - first + 1 < MIN_STEPS or now - self.measured_at < self.wait_s:
            return None
        return StepRange(first, last)

    def note_start(self, steps: StepRange, now: float, pace: Pace) -> None:
        """Record that a path over these steps is being measured."""
        if self.measured_at > 0:
            self.wait_s = min(2 * self.wait_s, pace.longest_wait_s)
        self.last_step, self.measured_at = steps.last, now


class Credit:
    """A budget of processor time, which grows by `Pace.share` of the time that passes."""

    def __init__(self, pace: Pace, now: float) -> None:
        """Start with the full credit."""
        self._pace = pace
        self._left_s, self._at = pace.credit_s, now

    def is_left(self, now: float) -> bool:
        """Return whether processor time is left."""
        self._left_s = min(self._left_s + self._pace.share * (now - self._at), self._pace.credit_s)
        self._at = now
        return self._left_s > 0

    def take(self, seconds: float) -> None:
        """Subtract processor time; the credit may become negative."""
        self._left_s -= seconds


class PathWatch:
    """A thread that measures the critical paths of runs.

    `update` and `events` are for the thread that reads tapes; they do not block.
    """

    def __init__(self, ask_others: AskOthers, pace: Pace = DEFAULT_PACE) -> None:
        """Start the thread.

        Args:
            ask_others: Asks the agents of other nodes for calls.
            pace: The schedule of measurements.
        """
        self._pace = pace
        self._ask_others = ask_others
        self._runs: dict[int, _RunState] = {}
        self._watched: Sequence[RunToWatch] = ()
        self._events: deque[Event] = deque(maxlen=_MAX_EVENTS)
        self._credit = Credit(pace, time.monotonic())
        self._child: Child | None = None
        self._stopping = threading.Event()
        threading.Thread(target=self._measure_repeatedly, name="torchdist-paths", daemon=True).start()

    def update(self, runs: Sequence[RunToWatch]) -> None:
        """Replace the runs to watch."""
        self._watched = runs

    def events(self) -> list[Event]:
        """Return the events since the last call."""
        return [self._events.popleft() for _ in range(len(self._events))]

    def stop(self) -> None:
        """Stop the thread, and abandon a path that is being measured."""
        self._stopping.set()
        child = self._child
        if child is not None:
            child.kill()

    def _measure_repeatedly(self) -> None:
        while not self._stopping.wait(self._pace.check_s):
            with guard.guarded("the critical path"):
                self._measure_next(time.monotonic())

    def _measure_next(self, now: float) -> None:
        watched = {run.world.run: run for run in self._watched}
        self._runs = {
            run: self._runs.get(run) or _RunState(self._pace.first_wait_s, SlowParts(self._pace.persistence_s))
            for run in watched
        }
        if not self._credit.is_left(now):
            return
        for run in sorted(watched, key=lambda run: self._runs[run].measured_at):
            state = self._runs[run]
            steps = state.due(watched[run], now)
            if steps is not None:
                state.note_start(steps, now, self._pace)
                self._measure(watched[run], state, steps)
                return

    def _measure(self, run: RunToWatch, state: _RunState, steps: StepRange) -> None:
        began = time.monotonic()
        try:
            self._child = Child(run.tapes, steps)
            result = self._child.path(self._ask_others(run.world.run, steps), run.members)
        except ChildError as error:
            _logger.debug("no critical path: %s", error)
            self._credit.take(time.monotonic() - began)  # an upper bound: the child's processor time is unknown
            return
        finally:
            self._child = None
        self._credit.take(result.took_s)
        if result.calls > MAX_CALLS:
            state.steps //= 2
        self._events.extend(_events_of(result, run, state.parts))


def _events_of(result: MeasuredPath, run: RunToWatch, parts: SlowParts) -> list[Event]:
    if result.lengths is None:
        return []
    judged = JudgedWorld(run.world, run.world.run, run.agent_id)
    new = parts.update(result.parts, time.monotonic())
    return [
        PathMeasured(judged.run, result.lengths),
        *(slow.finding_of(part, judged) for part in new),
        *(slow.over_of(part, judged.run) for part in parts.ended),
    ]


class StepsResponder:
    """Answers other agents' requests for the calls of some steps, one request at a time."""

    def __init__(self, answer_s: float = ANSWER_S, child: type[Child] = Child) -> None:
        """Start without runs.

        Args:
            answer_s: Longest time that an answer may take, in seconds.
            child: The process that reads the calls.
        """
        self._answer_s, self._child = answer_s, child
        self._tapes: dict[int, tuple[Path, ...]] = {}
        self._busy = threading.Lock()

    def update(self, tapes: dict[int, tuple[Path, ...]]) -> None:
        """Replace the tapes of each run."""
        self._tapes = tapes

    def answer(self, run_id: int, body: bytes) -> bytes | None:
        """Return the answer; None if the request is malformed or another request is being answered. Thread-safe."""
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
