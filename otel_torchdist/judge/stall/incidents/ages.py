"""The ages of a run's waits, and the times at which their markers are due."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Final, Generic, TypeVar

from otel_torchdist.judge.verdict.rules import StallRules, Standstill, Wait
from otel_torchdist.model.snapshot import WorldSnapshot

# --- ages -------------------------------------------------------------------------------------------------------------
# The age of a wait, without suspensions and without the time for which it was expected or excused.


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
        """Return the snapshot with announcements that do not expire while the run is suspended."""
        return self._standstill.with_announcements(world)

    def forget_all_but(self, waits: Iterable[Wait]) -> None:
        """Forget all other waits."""
        self._spared = {wait.key: self._spared[wait.key] for wait in waits if wait.key in self._spared}

    def stands_still(self, now_ns: int) -> bool:
        """Return whether the run is suspended now."""
        return self._standstill.is_on(now_ns)

    def age_ns(self, wait: Wait, world: WorldSnapshot) -> int:
        """Return the age of a wait; on a remote rank, up to when its agent last saw it alive."""
        seen_ns = min(world.taken_ns, wait.view.seen_alive_ns) if wait.view.is_remote else world.taken_ns
        ran_until_ns = self._standstill.ran_until_ns(seen_ns)
        return ran_until_ns - max(wait.since_ns, self._spared.get(wait.key, 0)) - self._standstill.lost_ns(wait)

    def oldest_ns(self, waits: Iterable[Wait], world: WorldSnapshot) -> int | None:
        """Return the age of the oldest wait; None if there is none."""
        return max((self.age_ns(wait, world) for wait in waits), default=None)

    def stalled(self, waits: Iterable[Wait], world: WorldSnapshot) -> list[Wait]:
        """Return the waits that are longer than allowed, or whose rank's backend has given up."""
        return [wait for wait in waits if self._rules.is_stalled(wait, self._final_age_ns(wait, world))]

    def _final_age_ns(self, wait: Wait, world: WorldSnapshot) -> int:
        return ENDLESS_NS if wait.view.has_given_up else self.age_ns(wait, world)

    def soon_stalled(self, waits: Iterable[Wait], world: WorldSnapshot) -> list[Wait]:
        """Return the waits that have reached half the threshold and are not ignored."""
        rules = self._rules
        return [
            wait for wait in waits if 2 * self.age_ns(wait, world) >= rules.threshold_ns and not rules.is_ignored(wait)
        ]

    def spare(self, waits: Iterable[Wait], world: WorldSnapshot) -> None:
        """Restart the ages of these waits at zero."""
        spared = list(waits)
        self._standstill.forgive(spared)
        self._spared |= {wait.key: world.taken_ns for wait in spared}

    def spare_expected(self, waits: Iterable[Wait], world: WorldSnapshot) -> None:
        """Restart the ages of these waits, and remember that they were expected."""
        expected = list(waits)
        self._expected |= {wait.key for wait in expected}
        self.spare(expected, world)

    def still_expected(self, waits: Iterable[Wait]) -> list[Wait]:
        """Return the waits for which `spare_expected` was called, and forget the others."""
        expected = [wait for wait in waits if wait.key in self._expected]
        self._expected = {wait.key for wait in expected}
        return expected


# --- markers ----------------------------------------------------------------------------------------------------------
# When markers of a stalled operation are due, and their numbers. A marker appears at the threshold, and then each time
# the operation's age has doubled. If an operation waits for a dead rank, its first marker appears immediately.
# Span ids of markers and of an incident's bars are hashes of these numbers, and no span id may be exported twice. A
# process that has watched an operation from its start counts 1, 2, 3, … A process that takes over does not know the
# last number of its predecessor, and continues from the operation's age in milliseconds. The predecessor's numbers are
# lower: it counted from 1, or from an earlier age, at most once per pass, and passes are at least a millisecond apart.


MAX_REMEMBERED: Final = 16_384

K = TypeVar("K", bound=Hashable)


class Numbering(Generic[K]):
    """A counter for each key."""

    def __init__(self, watching_since_ns: int) -> None:
        """Count from 1 for operations that began after `watching_since_ns`, the start of watching."""
        self._watching_since_ns = watching_since_ns
        self._last: dict[K, int] = {}

    def last(self, key: K) -> int | None:
        """Return the last number given to `key`."""
        return self._last.get(key)

    def following(self, key: K, began_ns: int, now_ns: int) -> int:
        """Return the next number without taking it.

        Args:
            key: The counter.
            began_ns: When the numbered operation began.
            now_ns: Monotonic time.
        """
        last = self._last.get(key)
        if last is not None:
            return last + 1
        return 1 if began_ns >= self._watching_since_ns else (now_ns - began_ns) // 1_000_000 + 1

    def take(self, key: K, number: int, now_ns: int) -> None:
        """Record `number` as the latest number of `key`."""
        self._last.pop(key, None)
        self._last[key] = number
        if len(self._last) > MAX_REMEMBERED:
            del self._last[next(iter(self._last))]
            # A forgotten key is numbered as after a takeover from another process.
            self._watching_since_ns = now_ns


MAX_PER_RANK: Final = 16
"""Maximum number of one rank's operations with markers, the oldest first."""


class MarkerClock:
    """Tracks the age at which the next marker of each stalled operation is due."""

    def __init__(self, threshold_ns: int, watching_since_ns: int) -> None:
        """Give the first marker of an operation at `threshold_ns`."""
        self._threshold_ns = threshold_ns
        self._next_ns: dict[tuple[int, int], int] = {}
        self._numbering: Numbering[tuple[int, int]] = Numbering(watching_since_ns)

    def has_marked(self, wait: Wait) -> bool:
        """Return whether a wait has had a marker."""
        return wait.key in self._next_ns

    def due(self, stalled: Iterable[Wait], now_ns: int, at_once: Iterable[Wait] = ()) -> list[tuple[Wait, int]]:
        """Return the waits whose marker is due, each with the marker's number.

        Args:
            stalled: Waits beyond the threshold.
            now_ns: Monotonic time.
            at_once: Waits with a first marker due at any age.
        """
        early = {wait.key for wait in at_once if not self.has_marked(wait)}
        waits = {wait.key: wait for wait in (*stalled, *at_once)}
        numbered: list[tuple[Wait, int]] = []
        ranks: Counter[int] = Counter()
        for wait in sorted(waits.values(), key=lambda wait: wait.since_ns):
            ranks[wait.view.nonce] += 1
            age_ns = now_ns - wait.since_ns
            next_ns = 0 if wait.key in early else self._next_ns.get(wait.key, self._threshold_ns)
            if ranks[wait.view.nonce] > MAX_PER_RANK or age_ns < next_ns:
                continue
            self._next_ns[wait.key] = next_doubling(self._threshold_ns, age_ns)
            number = self._numbering.following(wait.key, wait.since_ns, now_ns)
            self._numbering.take(wait.key, number, now_ns)
            numbered.append((wait, number))
        return numbered

    def forget_all_but(self, waits: Iterable[Wait]) -> None:
        """Forget all other operations."""
        open_keys = {wait.key for wait in waits}
        self._next_ns = {key: next_ns for key, next_ns in self._next_ns.items() if key in open_keys}


def next_doubling(threshold_ns: int, age_ns: int) -> int:
    """Return the first of `threshold_ns` times 1, 2, 4, … that is greater than `age_ns`."""
    next_ns = threshold_ns
    while next_ns <= age_ns:
        next_ns *= 2
    return next_ns
