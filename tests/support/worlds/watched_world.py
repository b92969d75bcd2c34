"""A detector that polls a simulated world as often as it asks to, on a clock of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.model.stacks import Stacks, ThreadStack
from otel_torchdist.stall.events import Event, IncidentResolved, MarkerDue, StacksWanted, VerdictGiven
from otel_torchdist.stall.watch import Detector
from otel_torchdist.verdict.rules import StallRules
from tests.support.worlds.fake_world import FIRST_NONCE, SECOND, START_NS, FakeWorld, group_of

if TYPE_CHECKING:
    from typing_extensions import Self

EVERYBODY = group_of(0, 1, 2, 3, description="default_pg")
THRESHOLD_S = 10.0
RULES = StallRules(round(THRESHOLD_S * SECOND))
LOAD_BATCH = CallSiteName("load_batch", "/home/user/train.py", 57)
STACK = ThreadStack(100, "MainThread", (CallSiteName("sleep", "/usr/lib/python3.11/time.py", 1), LOAD_BATCH))


class Watching:
    """A detector, a world and a clock that advances in steps chosen by the detector.

    Attributes:
        events: What was reported, with the time in seconds.
        answers_after_s: How long ranks take to write their stacks; None when they never do.
    """

    def __init__(
        self,
        world: FakeWorld,
        answers_after_s: float | None = 0.6,
        began_s: float = 0.0,
        ignored: Sequence[str] = (),
        stack: ThreadStack = STACK,
        stacks: Mapping[int, tuple[ThreadStack, ...]] | None = None,
    ) -> None:
        """Begin; ranks have the stacks in `stacks`, or else one thread with `stack`."""
        self.world = world
        self.answers_after_s = answers_after_s
        rules = dataclasses.replace(RULES, ignored=tuple(ignored))
        self.detector = Detector(rules, START_NS + round(began_s * SECOND))
        self.stack = stack
        self.stacks = stacks or {}
        self.earlier_s: dict[int, float] = {}
        self.now_s = began_s
        self.asked_s: dict[int, float] = {}
        self.events: list[tuple[float, Event]] = []

    def poll(self) -> list[Event]:
        """Poll now."""
        found = self.detector.process([self.snapshot()])
        for event in found:
            if isinstance(event, StacksWanted):
                answered = event.nonces & self.asked_s.keys()
                self.earlier_s |= {nonce: self.asked_s[nonce] for nonce in answered if self._has_answered(nonce)}
                self.asked_s |= dict.fromkeys(event.nonces, self.now_s)
        self.events += [(self.now_s, event) for event in found]
        return found

    def until(self, then_s: float) -> Self:
        """Poll as often as the detector asks; returns itself."""
        while self.now_s < then_s:
            self.now_s = min(self.now_s + self.detector.next_check_s, then_s)
            self.poll()
        return self

    def snapshot(self) -> WorldSnapshot:
        """The world now, with the stacks that ranks have written."""
        snapshot = self.world.snapshot(self.now_s)
        views = {
            rank: dataclasses.replace(view, stacks=self.stacks_of(view.nonce)) for rank, view in snapshot.ranks.items()
        }
        return dataclasses.replace(snapshot, ranks=views)

    def stacks_of(self, nonce: int) -> Stacks | None:
        """The request for the stacks of the rank with this nonce, and its answer; None if it was not asked."""
        asked_s = self.asked_s.get(nonce)
        if asked_s is None:
            return None
        threads = self.stacks.get(nonce - FIRST_NONCE, (self.stack,))
        asked_ns = START_NS + round(asked_s * SECOND)
        if self._has_answered(nonce):
            return Stacks(asked_ns, threads)
        earlier_s = self.earlier_s.get(nonce)
        if earlier_s is None:
            return Stacks(asked_ns, None)
        return Stacks(asked_ns, None, earlier=threads, earlier_ns=START_NS + round(earlier_s * SECOND))

    def _has_answered(self, nonce: int) -> bool:
        return self.answers_after_s is not None and self.now_s >= self.asked_s[nonce] + self.answers_after_s

    @property
    def reported(self) -> list[tuple[float, Event]]:
        """What was reported, without the requests for stacks, which ranks may get whenever others wait."""
        return [(at_s, event) for at_s, event in self.events if not isinstance(event, StacksWanted)]

    @property
    def verdicts(self) -> list[tuple[float, VerdictGiven]]:
        """The verdicts given."""
        return [(at_s, event) for at_s, event in self.events if isinstance(event, VerdictGiven)]

    @property
    def ends(self) -> list[tuple[float, IncidentResolved]]:
        """The incidents resolved."""
        return [(at_s, event) for at_s, event in self.events if isinstance(event, IncidentResolved)]

    def markers(self, rank: int) -> list[MarkerDue]:
        """The markers of one rank."""
        found = [event for _, event in self.events if isinstance(event, MarkerDue)]
        return [marker for marker in found if marker.wait.view.rank == rank]


def stalled(late: int = 2, since_s: float = 5.0) -> tuple[FakeWorld, dict[int, int]]:
    """All ranks but one are in an all_reduce; their operations by rank."""
    world = FakeWorld(4)
    world.meet(EVERYBODY, 1.0)
    return world, {rank: world.ranks[rank].enter(EVERYBODY, since_s) for rank in range(4) if rank != late}
