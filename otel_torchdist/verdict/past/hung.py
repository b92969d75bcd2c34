"""The verdict on a run whose ranks gave up waiting, as it was just before: nothing that came afterwards changes it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from otel_torchdist.model.calls import OperationId
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.verdict.giving_up import GivenUp, all_given_up, before_giving_up
from otel_torchdist.verdict.judging.judge import Judge
from otel_torchdist.verdict.model import Verdict, locate, urgency
from otel_torchdist.verdict.waits import waits_of


@dataclass(frozen=True, slots=True)
class Hung:
    """A run that hung until ranks gave up.

    Attributes:
        verdict: The verdict with places.
        world: The run just before the first rank gave up.
        given_up: The waits that ranks gave up, the first of them first.
    """

    verdict: Verdict
    world: WorldSnapshot
    given_up: tuple[GivenUp, ...]


def find_hung(world: WorldSnapshot, threshold_ns: int) -> Hung | None:
    """What held up the ranks that gave up, if that is how the run ended; None if it did not end so.

    A wait counts as a stall however long the threshold is: nobody expected more than the timeout. Nor does what a
    rank had announced, or compiled, matter any more.

    Args:
        world: The run when ranks have ended.
        threshold_ns: See `Judge`.
    """
    before = before_giving_up(world)
    if before is None:
        return None
    given_up = tuple(all_given_up(world.ranks.values()))
    shortest_ns = min(one.after_ns for one in given_up)
    judge = Judge(before, min(threshold_ns, shortest_ns // 2))
    long_since_ns = before.taken_ns - shortest_ns
    operations = {one.operation.operation_id for one in given_up}
    operations |= {wait.operation.operation_id for wait in waits_of(before) if wait.since_ns <= long_since_ns}
    found = [judge.verdict_on(operation_id) for operation_id in _first_of_each_channel(operations)]
    own = {one.operation.operation_id for one in given_up}
    verdict = min(
        (one for one in found if one is not None),
        key=lambda one: (urgency(one)[0], one.operation_id not in own, urgency(one)),
        default=None,
    )
    if verdict is None:
        return None
    return Hung(dataclasses.replace(locate(before, verdict), deadline=None), before, given_up)


def _first_of_each_channel(operations: set[OperationId]) -> list[OperationId]:
    first = {operation_id.channel: operation_id for operation_id in sorted(operations, reverse=True)}
    return list(first.values())
