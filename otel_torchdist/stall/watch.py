"""The stall side of a reader: which tapes are followed, and one look at all of them."""

from __future__ import annotations

from collections.abc import Sequence

from otel_torchdist.stall.company import Company
from otel_torchdist.stall.death_watch import DeathWatch
from otel_torchdist.stall.detector import LOOK_S, Detector
from otel_torchdist.stall.events import Event, OngoingStall, StacksOverdue, StacksWanted
from otel_torchdist.stall.snapshot import TapeFollower
from otel_torchdist.stall.worlds import worlds
from otel_torchdist.tape.reader import Batch, TapeReader


class StallWatch:
    """Follows tapes, takes pictures, asks ranks for their stacks, and says what happened.

    Where several processes read the same tapes, all of them may follow, so that each can take over, but only the
    one that was elected looks.

    Attributes:
        failed: Tapes that the last look could make nothing of, by nonce, and why.
    """

    def __init__(
        self,
        threshold_s: float,
        ignored: Sequence[str] = (),
        compares_calls: bool = True,
        company: Company | None = None,
        deaths: DeathWatch | None = None,
    ) -> None:
        """Watch without tapes.

        Args:
            threshold_s: Age at which an open operation is stalled.
            ignored: Operations that never are, see `StallRules`.
            compares_calls: Likewise.
            company: Who else sees ranks of the same runs; None for nobody.
            deaths: Sees the ends of processes; None where only locks tell of them.
        """
        self._company = company
        self._deaths = deaths
        self._compares_calls = compares_calls
        self._threshold_s = threshold_s
        self._ignored = ignored
        self._followers: dict[int, TapeFollower] = {}
        self._detector: Detector | None = None
        self.failed: dict[int, Exception] = {}

    def follow(self, reader: TapeReader) -> None:
        """Follow a tape; every batch from its first poll on must come to `observe`."""
        if self._deaths is not None:
            self._deaths.follow(reader.path, reader.identity)
        self._followers[reader.identity.nonce] = TapeFollower(reader, self._deaths)

    def forget(self, nonce: int) -> None:
        """Stop following the tape with this nonce."""
        self._followers.pop(nonce, None)
        if self._deaths is not None:
            self._deaths.forget(nonce)

    def observe(self, nonce: int, batch: Batch) -> None:
        """Take in what a poll of a followed tape found."""
        self._followers[nonce].observe(batch)

    @property
    def next_look_s(self) -> float:
        """Seconds until the next look, which a poll of every tape comes before."""
        return self._detector.next_look_s if self._detector is not None else LOOK_S

    @property
    def is_concluding(self) -> bool:
        """See `Detector`."""
        return self._detector is not None and self._detector.is_concluding

    def look(self, now_ns: int, is_last: bool = False) -> list[Event]:
        """Look at all ranks.

        Args:
            now_ns: Monotonic time after the tapes were polled.
            is_last: Whether nobody looks after this.

        Returns:
            What there is to report, in this order.
        """
        if self._detector is None:
            self._detector = Detector(self._threshold_s, now_ns, self._ignored, self._compares_calls, self._company)
        for follower in self._followers.values():
            follower.is_last_look = is_last
        found = self._detector.look(worlds(self._followers.values(), now_ns), is_last)
        self.failed = {nonce: one.failure for nonce, one in self._followers.items() if one.failure is not None}
        for world, error in self._detector.failed:
            self.failed |= {view.nonce: error for view in world.ranks.values() if view.nonce in self._followers}
        for event in found:
            if isinstance(event, StacksWanted | StacksOverdue):
                self._ask(event, now_ns)
                if self._company is not None:
                    self._company.ask(event)
        for event in self._company.asked() if self._company is not None else ():
            self._ask(event, now_ns)
        return [event for event in found if not isinstance(event, StacksWanted | StacksOverdue)]

    def _ask(self, event: StacksWanted | StacksOverdue, now_ns: int) -> None:
        for nonce in event.nonces & self._followers.keys():
            if isinstance(event, StacksWanted):
                self._followers[nonce].ask_for_stacks(now_ns)
            else:
                self._followers[nonce].ask_by_signal()

    @property
    def ongoing(self) -> list[OngoingStall]:
        """The stalls that are on."""
        return self._detector.ongoing if self._detector is not None else []

    def stand_down(self) -> None:
        """Another process looks from now on; what was told so far is its to remember."""
        self._detector = None
