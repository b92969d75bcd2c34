"""Runs the ranks of a simulated world through a schedule of operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from otel_torchdist.model.calls import GroupView, OperationView
from otel_torchdist.model.kinds import Blame, How
from tests.support.worlds.fake_world import FakeRank, FakeWorld


@dataclass
class RecordedRank(FakeRank):
    """A rank whose ended calls are kept.

    Attributes:
        ended: The calls that have ended, in the order of their ends.
        usual_end: How a call ends where nothing else is given.
    """

    ended: list[OperationView] = field(default_factory=list[OperationView])
    usual_end: How = How.WAIT

    def end(
        self,
        number: int,
        at_s: float,
        how: How | None = None,
        failure: str = "",
        blame: Blame = Blame.UNKNOWN,
        is_refused: bool = False,
    ) -> None:
        """End an operation, and keep it."""
        super().end(number, at_s, self.usual_end if how is None else how, failure, blame, is_refused)
        assert self.last is not None
        self.ended.append(self.last)

    def call(self, group: GroupView, at_s: float, name: str = "all_reduce", **others: Any) -> None:
        """Make a call that ends at once."""
        self.end(self.enter(group, at_s, name, **others), at_s + 0.001)

    @property
    def calls(self) -> tuple[OperationView, ...]:
        """All its calls in the order in which they were made."""
        return tuple(sorted((*self.ended, *self.open.values()), key=lambda operation: operation.record.number))


@dataclass(frozen=True)
class Meeting:
    """One operation of a schedule.

    Attributes:
        group: The ranks that take part.
        in_flight: Its ranks go on at once, and wait for it before their next blocking operation.
        seen: Whether that wait shows on the tape; waits in torch's C++ code do not.
    """

    group: GroupView
    in_flight: bool = False
    seen: bool = True


def play(world: FakeWorld, schedule: Sequence[Meeting], stops: dict[int, int]) -> float:
    """Let every rank run through its part of a schedule until none can go on.

    Args:
        world: All ranks at the beginning.
        schedule: Operations in an order that all ranks keep.
        stops: By rank, before how many of its operations it stops permanently.

    Returns:
        The time, in seconds, at which the last rank has stopped.
    """
    players = {rank: _Player(rank, schedule, stops.get(rank)) for rank in range(len(world.ranks))}
    now_s = 0.0
    moved = True
    while moved:
        moved = False
        for player in players.values():
            while player.turn(world, players, now_s):
                moved = True
                now_s += 0.01
    return now_s


class _Player:
    """One rank on its way through the schedule."""

    def __init__(self, rank: int, schedule: Sequence[Meeting], stop: int | None) -> None:
        self.rank = rank
        self.todo = [index for index, meeting in enumerate(schedule) if rank in meeting.group.members][:stop]
        self.schedule = schedule
        self.entered: dict[int, int] = {}
        self.ended: set[int] = set()
        self.next = 0
        self.blocked_in: int | None = None

    def turn(self, world: FakeWorld, players: dict[int, _Player], now_s: float) -> bool:
        """Take the next action; False when there is none to take now."""
        return self._end_one(world, players, now_s) or self._go_on(world, now_s)

    def _end_one(self, world: FakeWorld, players: dict[int, _Player], now_s: float) -> bool:
        for index, number in self.entered.items():
            if index in self.ended:
                continue
            members = self.schedule[index].group.members
            if all(index in players[member].entered for member in members):
                world.ranks[self.rank].end(number, now_s)
                self.ended.add(index)
                self.blocked_in = None if self.blocked_in == index else self.blocked_in
                return True
        return False

    def _go_on(self, world: FakeWorld, now_s: float) -> bool:
        if self.blocked_in is not None or self.next >= len(self.todo):
            return False
        index = self.todo[self.next]
        meeting = self.schedule[index]
        pending = [earlier for earlier in self.entered if earlier not in self.ended]
        if pending and not meeting.in_flight:
            self.blocked_in = pending[0]
            if self.schedule[pending[0]].seen:
                world.ranks[self.rank].wait_for(self.entered[pending[0]], now_s)
            return True
        number = world.ranks[self.rank].enter(meeting.group, now_s, blocking=not meeting.in_flight)
        self.entered[index] = number
        self.blocked_in = None if meeting.in_flight else index
        self.next += 1
        return True
