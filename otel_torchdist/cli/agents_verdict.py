"""The verdict of the agents of all nodes on a run of which this node has only some of the tapes."""

from __future__ import annotations

from pathlib import Path

from otel_torchdist.job.agents_verdict import AgentsVerdict, read_agents_verdict
from otel_torchdist.naming import listed_ranks
from otel_torchdist.tape.layout import RecordKind
from otel_torchdist.verdict.model import Verdict
from otel_torchdist.world.model import Channel, RankView, WorldSnapshot


def agents_verdict(directory: Path, world_size: int, world: WorldSnapshot, own: Verdict | None) -> AgentsVerdict | None:
    """Return the verdict of this node's agent on all ranks; None if these tapes show the same, or show all ranks.

    Args:
        directory: The job directory.
        world_size: How many ranks the run has on all nodes.
        world: Its ranks that have a tape here.
        own: The verdict on these ranks.
    """
    if len(world.ranks) == world_size:
        return None
    found = read_agents_verdict(directory, world.run)
    if found is None or any(_has_gone_on(view, found) for view in world.ranks.values()):
        return None
    is_the_same = own is not None and (own.kind.value, own.ranks) == (found.kind, ranks_of(found))
    return None if is_the_same else found


def ranks_of(verdict: AgentsVerdict) -> tuple[int, ...]:
    """Return the ranks that the verdict names, ascending."""
    return tuple(listed_ranks(verdict.ranks))


def _has_gone_on(view: RankView, verdict: AgentsVerdict) -> bool:
    """Whether a rank has completed a later operation in that channel: the agent died before its verdict was over."""
    kind, group, source, destination, tag = verdict.channel
    if kind not in [*RecordKind]:
        return False
    progress = view.progress.get(Channel(RecordKind(kind), group, source, destination, tag))
    return progress is not None and progress.completed > verdict.sequence
