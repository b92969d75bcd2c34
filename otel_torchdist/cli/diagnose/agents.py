"""What the agents of all nodes have said of a run of which this node has only some of the tapes."""

from __future__ import annotations

from collections.abc import Sequence

from otel_torchdist.cli.runs import Run
from otel_torchdist.stall.verdict import Verdict
from otel_torchdist.stall.world import Lane, RankView
from otel_torchdist.tape.agents_verdict import AgentsVerdict, read_agents_verdict
from otel_torchdist.tape.layout import RecordKind
from otel_torchdist.telemetry.rank_ranges import listed_ranks


def agents_verdict(run: Run, views: Sequence[RankView], own: Verdict | None) -> AgentsVerdict | None:
    """What this node's agent has heard, or said, of all ranks; None where these tapes say the same, or all there is.

    Args:
        run: The run.
        views: Its ranks that have a tape here.
        own: The verdict on these.
    """
    if len(views) == run.world_size:
        return None
    found = read_agents_verdict(run.directory, run.run_id)
    if found is None or any(_has_gone_on(view, found) for view in views):
        return None
    is_the_same = own is not None and (own.kind.value, own.ranks) == (found.kind, ranks_of(found))
    return None if is_the_same else found


def ranks_of(verdict: AgentsVerdict) -> tuple[int, ...]:
    """The ranks that it names, ascending."""
    return tuple(listed_ranks(verdict.ranks))


def _has_gone_on(view: RankView, verdict: AgentsVerdict) -> bool:
    """Whether a rank has come out of what follows in that lane: the agent that wrote this died before it was over."""
    kind, group, source, destination, tag = verdict.lane
    if kind not in [*RecordKind]:
        return False
    progress = view.progress.get(Lane(RecordKind(kind), group, source, destination, tag))
    return progress is not None and progress.completed > verdict.sequence
