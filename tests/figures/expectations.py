"""Forms of expectations: a number, bounds, or nothing.

Counts and bytes are exact. Seconds lie between what the program has slept in a part, or what two readings of its clock
leave, and what its clock shows around that part.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from tests.figures.running import Run, Series
from tests.figures.witness import DEFAULT, GROUPS, TEAM, Witness

Check: TypeAlias = Callable[[Run], None]
Expected: TypeAlias = Callable[[Run], Mapping[tuple[str, ...], float]]

RENDEZVOUS: Final = "rendezvous"
"""How metrics call the creation of a group."""
DDP: Final = ("wrap", "forward", "backward")
"""Parts of the program in which DDP calls collectives."""


def absent(name: str) -> Check:
    """Expect no series, because the program does not do that."""

    def check(run: Run) -> None:
        assert {**run.live.series(name), **run.final.series(name)} == {}

    return check


def shown(name: str, expected: Expected) -> Check:
    """Expect these series and no others, while ranks live and afterwards."""

    def check(run: Run) -> None:
        wanted = dict(expected(run))
        assert run.live.series(name) == wanted
        assert run.final.series(name) == wanted

    return check


def shown_live(name: str, expected: Expected) -> Check:
    """Expect these series while ranks live, and none afterwards."""

    def check(run: Run) -> None:
        assert run.live.series(name) == dict(expected(run))
        assert run.final.series(name) == {}

    return check


def shown_finally(name: str, expected: Expected) -> Check:
    """Expect these series when ranks have ended, and none while they live."""

    def check(run: Run) -> None:
        assert run.live.series(name) == {}
        assert run.final.series(name) == dict(expected(run))

    return check


def within(name: str, least: Expected, most: Expected, suffix: str = "", lives: bool = False) -> Check:
    """Expect series with numbers between bounds; the upper ones name all series, the lower ones those not above 0."""

    def check(run: Run) -> None:
        found, low, high = (run.live if lives else run.final).series(name, suffix), least(run), most(run)
        assert found.keys() == high.keys()
        outside = {
            key: (low.get(key, 0.0), value, high[key])
            for key, value in found.items()
            if not low.get(key, 0.0) <= value <= high[key]
        }
        assert outside == {}

    return check


def by_rank(value: Callable[[Witness], float | None]) -> Callable[[Run], Series]:
    """Make series of the ranks; None has none."""

    def series(run: Run) -> Series:
        found = {(str(witness.rank),): value(witness) for witness in run.witnesses}
        return {key: number for key, number in found.items() if number is not None}

    return series


def by_operation(value: Callable[[Witness, str, str], float]) -> Callable[[Run], Series]:
    """Make series by rank, group and operation, the creation of groups included."""

    def series(run: Run) -> Series:
        return {
            (str(witness.rank), group, operation): value(witness, group, operation)
            for witness in run.witnesses
            for group, operation in [*witness.counts, *((group, RENDEZVOUS) for group in GROUPS)]
        }

    return series


def zero(*_: object) -> float:
    """Return 0."""
    return 0.0


def nothing(run: Run) -> Series:
    """Return no series."""
    return {}


def entered(witness: Witness, group: str, operation: str) -> float:
    """Return how often an operation was called."""
    return 1 if operation == RENDEZVOUS else witness.counts[group, operation]


def waited_for(witness: Witness, group: str, operation: str) -> float:
    """Return how often the call itself waited for the end, so that the duration must be known."""
    if operation == RENDEZVOUS:
        return 1
    return sum(call.is_waited_for for call in witness.calls if (call.group, call.operation) == (group, operation))


def most_seconds(witness: Witness, group: str, operation: str) -> float:
    """Return the most time that an operation can have taken, by the program's clock around the parts that call it."""
    report = witness.report
    if operation == RENDEZVOUS:
        return witness.seconds("init_process_group" if group == DEFAULT else "new_group")
    place, calls = f"{group}/{operation}", witness.counts[group, operation]
    if report["calls"].get(place, 0) == calls:
        return witness.seconds(place)
    explicit = witness.seconds(place, "objects", "save", "load")
    if group == TEAM:
        return explicit
    # Several of DDP's may be in flight at the same time, each within its part.
    return explicit + math.ceil(calls / witness.steps) * witness.seconds(*DDP)


def of_sizes(run: Run, only_waited_for: bool, value: Callable[[int], float]) -> Series:
    """Sum up calls of the node by group, operation and size."""
    found: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for witness in run.witnesses:
        for call in witness.calls:
            if call.is_waited_for or not only_waited_for:
                found[call.group, call.operation, call.size_class] += value(call.size)
        for group in GROUPS:
            found[group, RENDEZVOUS, "4KiB"] += value(0)
    return dict(found)


def if_saving(saving: Check, plain: Check) -> Check:
    """Expect something else of the run that saves checkpoints and marks its steps."""
    return lambda run: saving(run) if run.saves else plain(run)


def step_bounds_s(run: Run) -> tuple[float, float]:
    """Return the least and the most that a step of any rank can have taken, but the first, whose begin is not known."""
    bounds = [one.step_bounds_s(step, step - 1) for one in run.witnesses for step in range(1, one.steps)]
    return min(least for least, _ in bounds), max(most for _, most in bounds)
