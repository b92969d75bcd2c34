"""Runs a script's steps without processes: groups wait for all of their members, and mismatched calls never end."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Final

from otel_torchdist.analysis.reproducer.script import (
    DEFAULT_GROUP,
    Create,
    CreateExtra,
    End,
    Ending,
    Script,
    ScriptCall,
    ScriptWait,
    Step,
)
from otel_torchdist.judge.verdict.past.post_mortem import examine
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.model.calls import Channel, GroupView, OperationId, OperationView
from otel_torchdist.model.kinds import Flag, RecordKind
from tests.support.worlds.fake_world import RUN, SECOND, START_NS, THRESHOLD_NS, FakeRank, FakeWorld, group_of

MUCH_LATER_S: Final = 100.0
_NO_FLAGS: Final = Flag(0)


def verdict_on(script: Script) -> Verdict | None:
    """Run a script until no rank can go on, and return the verdict."""
    world = FakeWorld(len(script.steps))
    players = [_Player(rank, steps) for rank, steps in zip(world.ranks, script.steps, strict=True)]
    now_s = 0.0
    while any([player.move(now_s) for player in players]) or _meet(players, now_s):
        now_s += 0.001
    views = [rank.view(MUCH_LATER_S) for rank in world.ranks]
    now_ns = START_NS + round(MUCH_LATER_S * SECOND)
    return examine(RUN, len(views), views, StallRules(THRESHOLD_NS), now_ns).verdict


class _Player:
    """One rank of the script."""

    def __init__(self, rank: FakeRank, steps: Sequence[Step]) -> None:
        self.rank, self.steps = rank, list(steps)
        self.calls: dict[OperationId, tuple[int, Step]] = {}
        self._works: dict[int, int] = {}
        self._blocked: int | None = None

    def move(self, now_s: float) -> bool:
        """Take a step. Return False if none is left, or if the last one has not ended."""
        if not self.steps or (self._blocked is not None and self._blocked in self.rank.open):
            return False
        step = self.steps.pop(0)
        self._blocked = None
        match step:
            case Create():
                self._enter(step, now_s, group_for(step.group.ranks, step.group.number), RecordKind.RENDEZVOUS)
            case ScriptCall():
                self._enter(step, now_s, group_for(step.group.ranks, step.group.number), RecordKind.OPERATION)
            case ScriptWait():
                self._blocked = self._works[step.work]
                if self._blocked in self.rank.open:
                    self.rank.wait_for(self._blocked, now_s)
            case CreateExtra():
                pass
            case End(ending=Ending.STOPS):
                self.rank.stopped = "T"
            case End(ending=Ending.KILLS_ITSELF | Ending.RAISES | Ending.EXITS_AT_ONCE):
                self.rank.die(now_s)
            case End():
                pass
        return True

    def _enter(self, step: Create | ScriptCall, now_s: float, group: GroupView, kind: RecordKind) -> None:
        if self.rank.rank not in group.members:
            return
        if isinstance(step, Create):
            name = "init_process_group" if step.group.number == DEFAULT_GROUP else "new_group"
            number = self.rank.enter(group, now_s, name, kind=kind)
        else:
            is_between_two = step.operation in ("send", "recv")
            number = self.rank.enter(
                group, now_s, step.operation, peer=step.peer, tag=step.tag, blocking=not step.work,
                flags=Flag.POINT_TO_POINT if is_between_two else _NO_FLAGS,
                reduce_op=step.reduce_op or "sum", shape=(step.shapes or ((),))[0], dtype=(step.dtypes or ("",))[0],
            )  # fmt: skip
            if step.work:
                self._works[step.work] = number
        if not isinstance(step, ScriptCall) or not step.work:
            self._blocked = number
        self.calls[self.rank.open[number].operation_id] = number, step


def group_for(ranks: tuple[int, ...], number: int) -> GroupView:
    """Return a script's group, named by its number."""
    view = group_of(*ranks, nth=number, description="default_pg" if number == DEFAULT_GROUP else "")
    return dataclasses.replace(view, name=dataclasses.replace(view.name, name=str(number)))


def _meet(players: Sequence[_Player], now_s: float) -> bool:
    """End every call that all members made equally. Return False if there is none."""
    ended = False
    for player in players:
        for number, view in list(player.rank.open.items()):
            others = [players[rank] for rank in sorted(_members(view))]
            if all(view.operation_id in other.calls for other in others) and _is_matching(view.operation_id, others):
                player.rank.end(number, now_s)
                ended = True
    return ended


def _members(view: OperationView) -> frozenset[int]:
    channel: Channel = view.operation_id.channel
    if channel.is_point_to_point:
        return frozenset((channel.source, channel.destination))
    assert view.group is not None
    return view.group.members


def _is_matching(operation_id: OperationId, players: Sequence[_Player]) -> bool:
    if operation_id.channel.is_point_to_point:
        return True
    steps = [player.calls[operation_id][1] for player in players]
    if all(isinstance(step, ScriptCall) and step.is_uneven for step in steps):
        return _fits([step for step in steps if isinstance(step, ScriptCall)])
    return len({step if isinstance(step, End) else dataclasses.replace(step, hangs=False) for step in steps}) == 1


def _fits(calls: Sequence[ScriptCall]) -> bool:
    """Return whether the parts that members send and receive have equal sizes."""
    size = len(calls)
    sent = [[math.prod(shape) for shape in call.shapes[:size]] for call in calls]
    received = [[math.prod(shape) for shape in call.shapes[size:]] for call in calls]
    return all(
        sent[sender][receiver] == received[receiver][sender] for sender in range(size) for receiver in range(size)
    )
