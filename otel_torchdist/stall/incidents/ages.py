"""How long each wait of a run has counted: without suspensions, and without times that were expected or excused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.verdict.rules import StallRules, Standstill
from otel_torchdist.verdict.waits import Wait

ENDLESS_NS: Final = 1 << 62


class WaitAges:
    """The ages of the waits of one run."""

    def __init__(self, rules: StallRules) -> None:
        self._rules = rules
        self._standstill = Standstill()
        self._spared: dict[tuple[int, int], int] = {}
        self._expected: set[tuple[int, int]] = set()

    def observe(self, world: WorldSnapshot, waits: Iterable[Wait]) -> None:
        """Process a snapshot and the waits in it."""
        self._standstill.observe(world, waits)

    def with_announcements(self, world: WorldSnapshot) -> WorldSnapshot:
        """The snapshot, with announcements that do not expire while the run stands still."""
        return self._standstill.with_announcements(world)

    def forget_all_but(self, waits: Iterable[Wait]) -> None:
        """Forget all other waits."""
        self._spared = {wait.key: self._spared[wait.key] for wait in waits if wait.key in self._spared}

    def stands_still(self, now_ns: int) -> bool:
        """Whether the run stands still now."""
        return self._standstill.is_on(now_ns)

    def age_ns(self, wait: Wait, world: WorldSnapshot) -> int:
        """How long a wait has counted; on a remote rank, up to when its agent last saw it alive."""
        seen_ns = min(world.taken_ns, wait.view.seen_alive_ns) if wait.view.is_remote else world.taken_ns
        ran_until_ns = self._standstill.ran_until_ns(seen_ns)
        return ran_until_ns - max(wait.since_ns, self._spared.get(wait.key, 0)) - self._standstill.lost_ns(wait)

    def oldest_ns(self, waits: Iterable[Wait], world: WorldSnapshot) -> int | None:
        """The age of the wait that has counted for longest; None if there is none."""
        return max((self.age_ns(wait, world) for wait in waits), default=None)

    def stalled(self, waits: Iterable[Wait], world: WorldSnapshot) -> list[Wait]:
        """Waits that are longer than they may be, or whose rank's backend has given up."""
        return [wait for wait in waits if self._rules.is_stalled(wait, self._final_age_ns(wait, world))]

    def _final_age_ns(self, wait: Wait, world: WorldSnapshot) -> int:
        return ENDLESS_NS if wait.view.has_given_up else self.age_ns(wait, world)

    def soon_stalled(self, waits: Iterable[Wait], world: WorldSnapshot) -> list[Wait]:
        """Waits that have counted for half the threshold."""
        rules = self._rules
        return [
            wait
            for wait in waits
            if 2 * self.age_ns(wait, world) >= rules.threshold_ns and not rules.is_left_alone(wait)
        ]

    def spare(self, waits: Iterable[Wait], world: WorldSnapshot) -> None:
        """Count the ages of these waits only from now on."""
        spared = list(waits)
        self._standstill.forgive(spared)
        self._spared |= {wait.key: world.taken_ns for wait in spared}

    def spare_expected(self, waits: Iterable[Wait], world: WorldSnapshot) -> None:
        """Count these, which are expected to take long, only from the last pass in which they still were."""
        expected = list(waits)
        self._expected |= {wait.key for wait in expected}
        self.spare(expected, world)

    def once_expected(self, waits: Iterable[Wait]) -> list[Wait]:
        """Those of all waits that were expected to take long; others are forgotten."""
        found = [wait for wait in waits if wait.key in self._expected]
        self._expected = {wait.key for wait in found}
        return found
