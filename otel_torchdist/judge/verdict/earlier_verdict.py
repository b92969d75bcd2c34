"""Decides whether an earlier verdict still holds: from before a hung job was ended, or from all nodes' agents."""

from __future__ import annotations

import signal
from typing import Final

from otel_torchdist.judge.verdict.deaths import failed_by_exception
from otel_torchdist.judge.verdict.first_death import first_death
from otel_torchdist.judge.verdict.giving_up import all_given_up, explains_ends, timed_out
from otel_torchdist.judge.verdict.roll_call import Standing
from otel_torchdist.judge.verdict.verdict import Outcome, Verdict
from otel_torchdist.model.calls import Channel
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.node.job.kept_results import AgentsVerdict

EXIT_DUE_NS: Final = 500_000_000
"""Time in ns within which a program exits after a timeout's exception, or continues."""
OTHER_EXITS_DUE_NS: Final = 10_000_000_000
"""Time in ns within which a launcher ends the other ranks after the first exit."""


def is_being_ended(world: WorldSnapshot, verdict: Verdict) -> bool:
    """Return whether ranks other than the named ones died first.

    If so, a launcher, a scheduler or a person is ending a hung job. If the named ranks die first, without a request,
    that needs a new verdict.
    """
    if verdict.kind is VerdictKind.DEAD or has_failed_by_departure(verdict, world):
        return False
    members = [world.ranks[rank] for rank in verdict.roll.standings if rank in world.ranks]
    first = first_death(members)
    if first is None:
        return explains_ends(members)
    all_wait = verdict.kind is VerdictKind.CIRCULAR
    return first.together or all_wait or not {*first.ranks} <= {*verdict.ranks}


def awaits_ends(world: WorldSnapshot, verdict: Verdict) -> bool:
    """Return whether waiting ranks have just timed out, and their launcher has not ended the other ranks yet."""
    members = [world.ranks[rank] for rank in verdict.roll.standings if rank in world.ranks]
    at_ns = timed_out_ns(world, verdict)
    if at_ns is None or not any(view.alive for view in members):
        return False
    is_ending = any(view.is_over for view in members if view.rank in verdict.roll.waits)
    return world.taken_ns - at_ns < (OTHER_EXITS_DUE_NS if is_ending else EXIT_DUE_NS)


def timed_out_ns(world: WorldSnapshot, verdict: Verdict) -> int | None:
    """Return when a timeout first ended a member's wait after the start of the verdict's wait; None if none did."""
    members = [world.ranks[rank] for rank in verdict.roll.standings if rank in world.ranks]
    last = [operation.record for view in members if (operation := timed_out(view)) is not None]
    ends = [record.completed_ns or 0 for record in last if record.entered_ns >= verdict.since_ns]
    return min([*ends, *(operation.at_ns for operation in all_given_up(members))], default=None)


def outcome_of(world: WorldSnapshot, verdict: Verdict) -> Outcome:
    """Return the outcome of an operation in which no rank waits any more."""
    operation_id = verdict.operation_id
    waiters = [world.ranks[rank] for rank in verdict.roll.waits if rank in world.ranks]
    progress = [view.progress[operation_id.channel] for view in waiters if operation_id.channel in view.progress]
    if any(reached.failed == operation_id.sequence for reached in progress):
        return Outcome.FAILED
    if any(reached.completed >= operation_id.sequence for reached in progress):
        return Outcome.COMPLETED
    if any(reached.failed > operation_id.sequence for reached in progress):
        return Outcome.FAILED  # later operations failed too, like DDP's other buckets
    if all(view.is_over for view in waiters):
        return Outcome.RANKS_ENDED
    return Outcome.OUT_OF_SIGHT


def verdict_of_all_nodes(
    written: AgentsVerdict | None, world: WorldSnapshot, world_size: int, own: Verdict | None
) -> AgentsVerdict | None:
    """Return the verdict of all nodes' agents, if it still holds and is more specific than this node's verdict.

    Args:
        written: The verdict written down by this node's agent, or None.
        world: The run's ranks on this node.
        world_size: Number of ranks on all nodes.
        own: The verdict on the ranks of this node.
    """
    if written is None or len(world.ranks) == world_size:
        return None
    if any(_has_gone_on(view, written) for view in world.ranks.values()):
        return None
    is_the_same = own is not None and (own.kind.value, own.ranks) == (written.kind, written.named)
    return None if is_the_same else written


def _has_gone_on(view: RankView, verdict: AgentsVerdict) -> bool:
    """Return whether a rank has since completed a later operation in the channel of the verdict."""
    kind, group, source, destination, tag = verdict.channel
    if kind not in [*RecordKind]:
        return False
    progress = view.progress.get(Channel(RecordKind(kind), group, source, destination, tag))
    return progress is not None and progress.completed > verdict.sequence


# --- departures -------------------------------------------------------------------------------------------------------
# Ranks that exited without an error while others still needed them, for example because they had fewer batches. With
# some backends, the others wait, which is an ordinary stall. gloo closes its connections: the others fail immediately,
# with exceptions that name no rank, and their launcher ends them.


ASKING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def names_departed(verdict: Verdict) -> bool:
    """Return whether a verdict names only ranks that exited before the operation was over."""
    return {verdict.roll.standings.get(rank) for rank in verdict.ranks} == {Standing.ENDED}


def is_about_failure(verdict: Verdict) -> bool:
    """Return whether ranks failed in an operation because the named ranks had exited before it."""
    return names_departed(verdict) and bool(verdict.roll.ranks(Standing.FAILED))


def has_failed_by_departure(verdict: Verdict, world: WorldSnapshot) -> bool:
    """Return whether an operation failed because the ranks named by its verdict had exited.

    Unseen members may have ended earlier than the named ones, so all must be seen.
    """
    if not names_departed(verdict) or verdict.roll.silent:
        return False
    departed = [world.ranks[rank] for rank in verdict.ranks]
    failed = [world.ranks[rank] for rank in verdict.roll.ranks(Standing.FAILED)]
    # A failed rank that was still alive after the exits is enough evidence too.
    is_seen = any(map(_is_end_known, departed)) or any(view.seen_alive_ns for view in failed)
    if is_canceled(verdict, world) or not is_seen:
        return False
    return any(view.exited_in_error or failed_by_exception(view) for view in failed)


def _is_end_known(view: RankView) -> bool:
    """Return whether a rank was seen before it exited, or its launcher recorded the exit for a later agent."""
    return bool(view.seen_alive_ns) or (view.is_new and view.death is not None)


def is_canceled(verdict: Verdict, world: WorldSnapshot) -> bool:
    """Return whether the named ranks exited because all members were asked to. The first exit is then no cause.

    If only one rank was asked to exit, its exit is the cause of the others' failure.
    """
    if not names_departed(verdict):
        return False
    members = [world.ranks[rank] for rank in verdict.roll.standings if rank in world.ranks]
    return all(was_signaled(view) for view in members)


def was_signaled(view: RankView) -> bool:
    """Return whether a signal asked a rank to end, as recorded or as its exit status shows."""
    if view.asked_signal:
        return True
    number = view.death.signal or (view.exit_code or 0) - 128 if view.death is not None else 0
    return number in ASKING
