"""Stories of small jobs, drawn by chance: what each rank does when it goes wrong, and how some of them end."""

from __future__ import annotations

import dataclasses
import random
import signal

from otel_torchdist.model.calls import GroupView
from otel_torchdist.model.kinds import Blame, How, TapeState
from otel_torchdist.model.names import AtTimeout
from tests.support.worlds.fake_world import FakeRank, FakeWorld, group_of

STALLS_S = 2.0
ENDS_AT_S = (2.5, 8.0, 22.0)
WAYS = ("waits", "calls another", "is elsewhere", "does not wait", "is frozen")
WEIGHTS = (6, 1, 2, 1, 1)
OPERATIONS = ("all_reduce", "barrier", "all_gather_into_tensor", "all_to_all_single")
EXCEPTIONS = ("ValueError", "RuntimeError", "KeyboardInterrupt")
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT)


class Story:
    """A job in which ranks wait in different operations or are elsewhere, and some of them end.

    Attributes:
        world: Its ranks, as they are before any of them ends.
        ends: Which ranks end, and when, in seconds; ascending.
    """

    def __init__(self, seed: int) -> None:
        """Draw the story of a seed."""
        self._chance = random.Random(seed)
        size = self._chance.randint(2, 4)
        self.world = FakeWorld(size)
        self._timeout_ms = self._chance.choice([0, 20_000])
        self._groups = [self._group(size, "default_pg"), self._group(size, "second", nth=1)]
        self._inside: dict[int, int] = {}
        self.world.meet(self._groups[0], 1.0)
        for rank in self.world.ranks:
            self._stall(rank)
        ending = [rank for rank in self.world.ranks if self._chance.random() < 0.5]
        self.ends = sorted(
            ((self._chance.choice(ENDS_AT_S) + self._chance.random(), rank) for rank in ending), key=lambda end: end[0]
        )

    def _group(self, size: int, description: str, nth: int = 0) -> GroupView:
        group = group_of(*range(size), description=description, nth=nth)
        name = dataclasses.replace(group.name, timeout_ms=self._timeout_ms, at_timeout=AtTimeout.RAISES)
        return dataclasses.replace(group, name=name)

    def _stall(self, rank: FakeRank) -> None:
        group = self._groups[self._chance.random() < 0.2]
        at_s = STALLS_S + self._chance.random()
        doing = self._chance.choices(
            ["waits", "calls another", "is elsewhere", "does not wait", "is frozen"], [6, 1, 2, 1, 1]
        )
        match doing[0]:
            case "is elsewhere":
                return
            case "is frozen":
                rank.stopped, rank.stopped_since_s = self._chance.choice("TD"), at_s
            case way:
                name = self._chance.choice(OPERATIONS) if way == "calls another" else "all_reduce"
                self._inside[rank.rank] = rank.enter(group, at_s, name, blocking=way != "does not wait")

    def end(self, rank: FakeRank, at_s: float) -> None:
        """End a rank, in a way that chance chooses."""
        rank.stopped = ""
        number, how = self._inside.get(rank.rank), self._chance.randrange(6)
        if how == 0 and number is not None:
            rank.end(number, at_s, How.FAILED, "RuntimeError", self._chance.choice(list(Blame)))
            rank.is_seen_to_die(at_s + 0.1, 1 << 8, TapeState.FAILED, "RuntimeError")
        elif how == 1:
            rank.is_seen_to_die(at_s, 1 << 8, TapeState.FAILED, self._chance.choice(EXCEPTIONS))
        elif how == 2:
            rank.is_seen_to_die(at_s, int(self._chance.choice(SIGNALS)))
        elif how == 3:
            rank.is_seen_to_die(at_s, self._chance.choice([0, 3]) << 8)
        elif how == 4 and number is None:
            rank.is_seen_to_die(at_s, 0, TapeState.FINISHED)
        else:
            rank.die(at_s)
