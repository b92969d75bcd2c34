"""A stall watch over existing tapes: polls, passes batches on and checks, as the reader does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from otel_torchdist.judge.stall.events import Event, MarkerDue, VerdictGiven
from otel_torchdist.judge.stall.watch import StallWatch
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.tape.reading.reader import TapeReader
from tests.support.waiting import until


class Lookout:
    """Watches tapes until it is stopped.

    Attributes:
        threshold_s: The age at which an operation counts as stalled.
        events: What the watch has reported so far.
    """

    def __init__(self, tapes: Sequence[TapeReader], threshold_s: float) -> None:
        """Follow tapes from their beginning."""
        self.threshold_s = threshold_s
        self.events: list[Event] = []
        self._tapes = list(tapes)
        self._watch = StallWatch(StallRules(round(threshold_s * 1e9)))
        for tape in self._tapes:
            self._watch.follow(tape)

    def poll(self) -> None:
        """Read what is new and check once."""
        for tape in self._tapes:
            self._watch.observe(tape.identity.nonce, tape.poll())
        self.events += self._watch.check(time.monotonic_ns())

    def until(self, condition: Callable[[], object]) -> None:
        """Check until a condition holds; the test fails if it does not in time."""

        def holds_after_a_check() -> object:
            self.poll()
            return condition()

        until(holds_after_a_check, what="what the watch waits for")

    def well_past_the_threshold(self) -> None:
        """Check until everything open now has been open for twice the threshold, and was checked then."""
        then = time.monotonic() + 2 * self.threshold_s
        self.until(lambda: time.monotonic() > then)
        self.poll()

    @property
    def suspected(self) -> list[str]:
        """The operations that have been reported as stalled."""
        return [event.wait.operation.name for event in self.events if isinstance(event, MarkerDue)]

    @property
    def verdicts(self) -> list[VerdictGiven]:
        """The verdicts given."""
        return [event for event in self.events if isinstance(event, VerdictGiven)]

    def open_for(self) -> dict[str, float]:
        """For how many seconds the youngest open operation of each name has been open, on any tape."""
        now = time.monotonic_ns()
        found: dict[str, float] = {}
        for tape in self._tapes:
            for operation in tape.open_operations():
                signature = tape.names.signature(operation.signature)
                name = signature.operation if signature is not None else ""
                age_s = (now - operation.entered_ns) / 1e9
                found[name] = min(age_s, found.get(name, age_s))
        return found


def tapes_of_all_ranks(own: TapeReader, ranks: int, directory: Path) -> list[TapeReader]:
    """The tapes of a job's ranks, including this process's own, which it must not open a second time.

    Args:
        own: This process's own tape.
        ranks: Number of ranks.
        directory: Where the tapes are.
    """
    others = [path for path in directory.rglob("*.tape") if path != own.path]
    assert len(others) == ranks - 1
    return [own, *map(TapeReader, others)]
