"""Groups, worlds and parts of sentences shared by the tables of verdicts."""

from __future__ import annotations

import dataclasses

from otel_torchdist.model.calls import GroupView
from otel_torchdist.model.kinds import Flag
from otel_torchdist.model.names import RaisedName
from tests.support.worlds.fake_world import group_of
from tests.support.worlds.steps import (
    Step,
    calls,
)

THREE = group_of(0, 1, 2, description="default_pg")
PAIR, SECOND_PAIR = group_of(0, 1, description="a"), group_of(0, 1, nth=1, description="b")
MESH = group_of(0, 1, 2, nth=1, description="mesh")
DEFAULT_PAIR = group_of(0, 1, description="default_pg")
UNALIGNED = group_of(0, 1, aligned=False)
RAISED = RaisedName("ValueError", "loss is nan", "step", "/home/ada/train.py", 57)
BACKGROUND = 200
OP = "all_reduce (sequence 2, default_pg)"
LINE = "at train, train.py:42"
LAST = "it was last in all_reduce, called in train at train.py:42"
IS_IN = "it is in all_reduce, called in train at train.py:42"
FIRST = "rank 0 is in all_reduce, called in train at train.py:42"
THREE_WAIT = "3 of 4 ranks wait in train at train.py:42"
THREE_WAIT_AT = "3 of 4 ranks wait at train.py:42"
CREATED = "the group is created in train at train.py:42"
CALLED = "called in train at train.py:42"


def in_pairs(*, may_be_busy: bool = False) -> tuple[Step, ...]:
    """Let three ranks wait for each other in pairs; two of them may be in flight without blocking."""
    pairs = [group_of(0, 1, description="a"), group_of(1, 2, description="b"), group_of(0, 2, description="c")]
    return tuple(
        calls(rank, pair, 1.0 + (rank + 1) % 3, blocking=not (may_be_busy and rank)) for rank, pair in enumerate(pairs)
    )


def on_device(rank: int, group: GroupView = THREE, begun_s: float | None = None) -> Step:
    """Let a rank enqueue an operation at second 0; its device may reach it."""

    def step(world: object) -> None:
        fake = world.ranks[rank]  # type: ignore[attr-defined]
        number = fake.enter(group, 0.0, flags=Flag.ON_DEVICE, blocking=False)
        if begun_s is not None:
            fake.begin_on_device(number, begun_s)

    return step


def named(group: GroupView, name: str) -> GroupView:
    """Return the same group under another of torch's numbers."""
    return dataclasses.replace(group, name=dataclasses.replace(group.name, name=name))
