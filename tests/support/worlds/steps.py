"""Steps by which tables of verdicts build their worlds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from otel_torchdist.judge.verdict.judging.judge import Judge
from otel_torchdist.judge.verdict.verdict import Doubt, Verdict, locate
from otel_torchdist.judge.verdict.wording.sentence import describe_verdict
from otel_torchdist.model.calls import GroupView, OperationId
from otel_torchdist.model.kinds import Blame, Flag, How, RecordKind, TapeState
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.snapshot import WorldSnapshot
from tests.support.worlds.fake_world import THRESHOLD_NS, FakeWorld, group_of
from tests.support.worlds.judging import the_verdict

Step: TypeAlias = Callable[[FakeWorld], object]
EVERYBODY: Final = group_of(0, 1, 2, 3, description="default_pg")
AT_S: Final = 10.0
"""When ranks enter what they wait in."""


def _each(ranks: int | Iterable[int]) -> Iterable[int]:
    return (ranks,) if isinstance(ranks, int) else ranks


def meets(group: GroupView = EVERYBODY, at_s: float = 1.0) -> Step:
    """All members complete an all_reduce."""
    return lambda world: world.meet(group, at_s)


def calls(
    ranks: int | Iterable[int],
    group: GroupView = EVERYBODY,
    at_s: float = AT_S,
    name: str = "all_reduce",
    **details: Any,
) -> Step:
    """Ranks enter an operation; `details` as in `FakeRank.enter`."""
    return lambda world: [world.ranks[rank].enter(group, at_s, name, **details) for rank in _each(ranks)]


def creates(ranks: int | Iterable[int], group: GroupView, at_s: float = AT_S) -> Step:
    """Ranks create a group."""
    return calls(ranks, group, at_s, "new_group", kind=RecordKind.RENDEZVOUS)


def receives(rank: int, source: int, group: GroupView = EVERYBODY, at_s: float = AT_S) -> Step:
    """A rank waits for a message."""
    return calls(rank, group, at_s, "recv", flags=Flag.POINT_TO_POINT, peer=source)


def leaves(
    ranks: int | Iterable[int], at_s: float, how: How = How.WAIT, failure: str = "", blame: Blame = Blame.UNKNOWN
) -> Step:
    """The newest open operation of ranks ends."""

    def step(world: FakeWorld) -> None:
        for rank in _each(ranks):
            world.ranks[rank].end(max(world.ranks[rank].open), at_s, how, failure, blame)

    return step


def dies(ranks: int | Iterable[int], at_s: float, state: TapeState = TapeState.RUNNING, failure: str = "") -> Step:
    """Processes end."""
    return lambda world: [world.ranks[rank].die(at_s, state, failure) for rank in _each(ranks)]


def has(ranks: int | Iterable[int], **attributes: object) -> Step:
    """Set attributes of `FakeRank`."""

    def step(world: FakeWorld) -> None:
        for rank in _each(ranks):
            for name, value in attributes.items():
                setattr(world.ranks[rank], name, value)

    return step


def lost(rank: int) -> Step:
    """A reader has read a rank until now, and comes too late for more."""

    def step(world: FakeWorld) -> None:
        world.ranks[rank].view(0.0)
        world.ranks[rank].lose_records()

    return step


def lost_in(rank: int) -> Step:
    """A reader comes too late for the end of what a rank is in, and for more."""

    def step(world: FakeWorld) -> None:
        number = max(world.ranks[rank].open)
        world.ranks[rank].end(number, AT_S + 1)
        world.ranks[rank].lose_records()

    return step


def late(*ranks: int, size: int = 4) -> tuple[Step, ...]:
    """All have met, and all but some are in the next all_reduce since second 10."""
    return meets(), calls([rank for rank in range(size) if rank not in ranks])


@dataclass(frozen=True)
class Judged:
    """A world, and the verdict on it.

    Attributes:
        steps: What happens in it, in order.
        kind: The verdict; None for none.
        ranks: The ranks that it names.
        says: Its sentence in full; '' where another row has one of the kind.
        now_s: When it is judged.
        size: How many ranks there are.
        only: The ranks that report; None for all.
        of: The operation that is judged, or the rank whose oldest it is; None where the verdicts on all agree.
        doubt: Why no rank is named; None where that does not matter.
    """

    steps: tuple[Step, ...]
    kind: VerdictKind | None
    ranks: tuple[int, ...] = ()
    says: str = ""
    now_s: float = 25.0
    size: int = 4
    only: tuple[int, ...] | None = None
    of: int | OperationId | None = None
    doubt: Doubt | None = None

    def snapshot(self) -> WorldSnapshot:
        """The world when it is judged."""
        world = FakeWorld(self.size)
        for step in self.steps:
            step(world)
        return world.snapshot(self.now_s, self.only)

    def check(self) -> None:
        """Compare the verdict, and its sentence."""
        world = self.snapshot()
        verdict = _verdict_on(world, self.of)
        found = None if verdict is None else verdict.kind
        assert (found, verdict.ranks if verdict else ()) == (self.kind, self.ranks)
        assert self.doubt is None or (verdict is not None and verdict.doubt is self.doubt)
        if self.says and verdict is not None:
            assert describe_verdict(locate(world, verdict), (world.taken_ns - verdict.since_ns) / 1e9) == self.says


def _verdict_on(world: WorldSnapshot, of: int | OperationId | None) -> Verdict | None:
    if of is None:
        return the_verdict(world)
    operation_id = world.ranks[of].open[0].operation_id if isinstance(of, int) else of
    return Judge(world, THRESHOLD_NS).verdict_on(operation_id)
