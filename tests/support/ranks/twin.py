"""For scripts that run twice: once recorded by us, and once alone, counted by torch and by gloo.

A script is a list of routes, functions that communicate in one way each. Recorded, every route is a step of the tape.
Alone, two counts are taken that are independent of us: torch's profiler counts how often each `c10d::` operation was
dispatched, and gloo itself numbers the operations that it is given, group by group.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.distributed import ProcessGroup, distributed_c10d
from torch.profiler import ProfilerActivity, profile

from otel_torchdist.capture.parts.steps import mark_step
from tests.support.ranks.rank import say, start_capture

RECORDED = "recorded"
ALONE = "alone"

_outside_the_books: dict[ProcessGroup, list[int]] = {}


def is_recorded() -> bool:
    """Which of the two this is."""
    return sys.argv[1] == RECORDED


def begin() -> None:
    """Switch capture on if this is the recorded run."""
    torch.set_num_threads(1)
    if is_recorded():
        start_capture()


def take(*routes: Callable[[], None]) -> None:
    """Take every route; alone, report what torch and gloo have counted on it."""
    mark_step()  # operations before the first route are step 0
    for route in routes:
        if is_recorded():
            route()
            mark_step()
            continue
        with counted(route.__name__):
            route()


@contextmanager
def counted(route: str) -> Iterator[None]:
    """Report what torch and gloo count inside the block."""
    before = counts_of_gloo()
    # Some operations are issued by callbacks of futures, which run on gloo's threads.
    everywhere = _ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=everywhere) as profiler:
        yield
    dispatched = Counter(event.name for event in profiler.events() or () if event.name.startswith("c10d::"))
    after = counts_of_gloo()
    gloo = {key: count - before.get(key, 0) for key, count in after.items() if count != before.get(key, 0)}
    say(route=route, dispatched=dispatched, gloo=gloo)


def counts_of_gloo() -> dict[str, int]:
    """How many operations gloo has been given so far, by the group's ranks and its place among those with the same."""
    listed = distributed_c10d._world.pg_group_ranks.items()
    groups: dict[Any, list[int]] = {group: list(ranks) for group, ranks in listed if isinstance(group, ProcessGroup)}
    groups.update(_outside_the_books)
    members = [",".join(map(str, ranks)) for ranks in groups.values()]
    places = [members[:index].count(ranks) for index, ranks in enumerate(members)]
    return {
        f"{ranks}/{place}": group._get_sequence_number_for_group()
        for group, ranks, place in zip(groups, members, places, strict=True)
    }


def outside_the_books(group: ProcessGroup, ranks: list[int]) -> ProcessGroup:
    """Count a group that torch does not list."""
    _outside_the_books[group] = ranks
    return group


@contextmanager
def refused(kind: type[Exception], text: str, always: bool = True) -> Iterator[None]:
    """Require that torch refuses the block; unless `always`, it may also accept it."""
    try:
        yield
    except kind as error:
        assert text in str(error), error
        return
    if always:
        raise AssertionError(f"torch does this now, contrary to: {text}")
