"""Merges the snapshots of all agents of a run into one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from otel_torchdist.agent.exchange.peer import PeerAgent
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.node.job.runs.membership import of_this_attempt


def all_ranks(
    local: WorldSnapshot, others: Collection[PeerAgent], announced: Mapping[int, frozenset[int]]
) -> WorldSnapshot:
    """Return the ranks of all agents.

    Args:
        local: The ranks of this node.
        others: The other agents.
        announced: By agent, the ranks that it has named in its questions.
    """
    ranks: dict[int, RankView] = dict(local.ranks)
    unreachable: dict[int, str] = {}
    for other in others:
        for view in other.views:
            is_over = view.is_dead or not view.alive
            if other.is_lost and not is_over:
                unreachable[view.rank] = other.peer.node
            elif view.rank not in ranks or not ranks[view.rank].alive:
                ranks[view.rank] = view
        if other.is_lost and not other.views:  # it has asked us, but never answered; or only refused to
            named = announced.get(other.peer.agent_id, frozenset[int]())
            named |= frozenset(other.refusal.ranks if other.refusal is not None else ())
            unreachable |= dict.fromkeys(named - ranks.keys(), other.peer.node)
    ranks = {rank: ranks[rank] for rank in of_this_attempt({rank: view.lifetime for rank, view in ranks.items()})}
    versions = {other.peer.node: other.refusal.version for other in others if other.refusal is not None}
    return WorldSnapshot(
        local.run,
        local.taken_ns,
        MappingProxyType(ranks),
        MappingProxyType(unreachable),
        other_versions=MappingProxyType(versions),
    )
