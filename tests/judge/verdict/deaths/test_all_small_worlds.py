"""Tests the table of evidence on all small worlds of the model: no innocent rank is named, the guilty one if possible.

`python -m tests.judge.verdict.deaths.test_all_small_worlds 2 3` enumerates all worlds of 2 and 3 ranks in minutes. The
tests judge every nth world of 2, 3 and 4 ranks.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from otel_torchdist.judge.verdict.first_death import FirstDeath, first_death
from tests.judge.verdict.deaths.launched import Backend, End, Fault, Handler, Launch, Launcher, ends_of, launches
from tests.judge.verdict.deaths.seen import Sees, Sight, views_of

STRIDES = {2: 13, 3: 61, 4: 1201}
"""Each nth world is judged in the tests: coprime to the numbers of choices, so that all are met."""


@dataclass
class Found:
    """The result of an enumeration.

    Attributes:
        worlds: Number of launches and views of them, including equal ones.
        judged: Number of different ones that were judged.
        innocent: Worlds in which an innocent rank was named.
        missed: Worlds in which the guilty rank was not named although the evidence suffices.
        named: Number of worlds in which the guilty rank was named, and was not, by available evidence.
    """

    worlds: int = 0
    judged: int = 0
    innocent: list[tuple[Launch, Sight, FirstDeath]] = field(default_factory=list[tuple[Launch, Sight, FirstDeath]])
    missed: list[tuple[Launch, Sight, FirstDeath]] = field(default_factory=list[tuple[Launch, Sight, FirstDeath]])
    named: Counter[tuple[str, bool]] = field(default_factory=Counter[tuple[str, bool]])


@dataclass
class _Alike:
    """Launches that are indistinguishable by their ends."""

    launch: Launch
    ends: list[End | None]
    count: int
    innocent: set[int]
    first: frozenset[int]


def enumerate_worlds(size: int, stride: int = 1) -> Found:
    """Judge all worlds of this number of ranks, or every nth of the different ones."""
    found = Found()
    alike: dict[object, _Alike] = {}
    for launch in launches(size):
        ends = ends_of(launch)
        if not any(ends):
            continue
        parent = launch.launcher if launch.launcher in (Launcher.RAY, Launcher.MPIRUN) else None
        on_device, is_hung = launch.backend is not Backend.GLOO, launch.fault is Fault.HUNG
        looks = (tuple(ends), launch.doing, launch.nodes, on_device, is_hung, parent)
        known = alike.setdefault(looks, _Alike(launch, ends, 0, set(), launch.first))
        known.count += 1
        known.innocent |= set(range(size)) - launch.first
        known.first &= launch.first
    nth = 0
    for one in alike.values():
        for sight in _sights(one.launch):
            found.worlds += one.count
            nth += 1
            if nth % stride == 0:
                _judge(one, sight, found)
    return found


def _judge(one: _Alike, sight: Sight, found: Found) -> None:
    found.judged += 1
    first = first_death(views_of(one.launch, one.ends, sight))
    if first is None:
        return
    names = not first.together and not first.is_open
    if names and one.innocent & {*first.ranks}:
        found.innocent.append((one.launch, sight, first))
    is_named = names and {*first.ranks} == one.first
    if one.first and sight.waited_s is None:
        found.named[sight.sees.name, is_named] += 1
    if one.first and not is_named and _suffices(one, sight):
        found.missed.append((one.launch, sight, first))


def _suffices(one: _Alike, sight: Sight) -> bool:
    """Return whether the guilty rank must be named: statuses are seen, its status is special and no request.

    If SIGTERM does not end ranks immediately, or NCCL's watchdog may have aborted it, the evidence may not suffice.
    """
    launch = one.launch
    if launch.fault is Fault.RAISED:
        return sight.waited_s is None
    statuses = {end.status if end is not None else None for end in one.ends}
    handles = launch.handler is not Handler.DEFAULT or launch.launcher is Launcher.RAY
    if (
        sight.sees is not Sees.ALL
        or sight.waited_s is not None
        or len(statuses) == 1
        or launch.fault is Fault.TERMINATED
    ):
        return False
    if launch.fault is Fault.ABORT and launch.backend is not Backend.GLOO:
        return False
    return not handles or (launch.fault is Fault.SEGMENTATION and not launch.slow_s)


def _sights(launch: Launch) -> Iterator[Sight]:
    """Yield the conditions under which an agent may see a launch: statuses, delays, and phases of the heartbeat."""
    size = len(launch.doing)
    everything = (True,) * size
    late = [(0.0, 0.0), (0.7, 0.7)] if launch.nodes == 1 else [(0.0, 0.0), (0.7, 0.0), (0.0, 0.7)]
    some = [known for known in itertools.product((True, False), repeat=size) if 0 < sum(known) < size]
    for phase in (0.0, 0.6):
        for late_s in late:
            yield from (Sight(sees, everything, late_s, phase) for sees in (Sees.ALL, Sees.ORDER, Sees.LOCKS))
            yield from (Sight(Sees.ZOMBIES, known, late_s, phase) for known in some)
        for waited_s, sees in itertools.product((0.5, 1.0), (Sees.ALL, Sees.ORDER, Sees.LOCKS)):
            yield Sight(sees, everything, phase=phase, waited_s=waited_s)


@pytest.fixture(
    scope="module",
    params=[pytest.param(size, marks=pytest.mark.thorough if size > 2 else (), id=f"{size} ranks") for size in STRIDES],
)
def found(request: pytest.FixtureRequest) -> Found:
    """Return the result for this number of ranks."""
    return enumerate_worlds(request.param, STRIDES[request.param])


def test_no_innocent_rank_is_named(found: Found) -> None:
    """In every world and under all conditions, only a guilty rank is named."""
    assert found.judged > 1_000
    assert found.innocent == []


def test_rank_at_fault_is_named(found: Found) -> None:
    """The guilty rank is named if statuses are seen, SIGTERM would have ended it at once, and the ends differ."""
    assert found.named["ALL", True] > 100
    assert found.missed == []


if __name__ == "__main__":
    for ranks in map(int, sys.argv[1:]):
        result = enumerate_worlds(ranks)
        print(f"{ranks} ranks: {result.worlds:,} worlds, {result.judged:,} that differ; an innocent rank is named in")
        print(f"{len(result.innocent)}, the guilty one missed in {len(result.missed)}; named: {dict(result.named)}")
        for wrong in (*result.innocent[:3], *result.missed[:3]):
            print(*wrong, sep="\n", end="\n\n")
