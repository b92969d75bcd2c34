"""From the critical path and the parallelism graph to advice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from otel_torchdist.advice.model import Advice, Topic
from otel_torchdist.critical_path.model import Cause, CauseKind, CriticalPath, PathKind
from otel_torchdist.parallelism.calls import GroupCalls, WorldCalls
from otel_torchdist.parallelism.graph import Graph, ParallelGroups
from otel_torchdist.parallelism.roles import Role

TWICE: Final = 2.0
"""A rank is pointed out if it has so many times its share of the critical path."""
EXPOSED: Final = 0.2
"""Transfers are pointed out if they are so much of the critical path."""
MANY_OPERATIONS: Final = 50
SMALL_BYTES: Final = 1_000_000
UNEQUAL: Final = 1.5
"""Experts are pointed out if the one with most work typically has so many times the mean."""
_WITHIN_LAYERS: Final = (Role.TENSOR, Role.SEQUENCE, Role.EXPERT, Role.CONTEXT)
"""They communicate several times in each layer, where nothing hides it."""
_OF_GRADIENTS: Final = (Role.DATA, Role.SHARDED, Role.REPLICA)


def advise(graph: Graph | None, calls: WorldCalls, path: CriticalPath | None) -> list[Advice]:
    """Find what is worth looking into, what would bring most first.

    Args:
        graph: The parallelism graph; None if there are no groups.
        calls: What the graph was derived from.
        path: The critical path; None if there is none.
    """
    found = [*_of_path(path)] if path is not None and path.has_steps else []
    if graph is not None:
        found += _of_graph(graph, calls)
    return sorted(found, key=lambda one: -(one.gain_ns or 0))


def _of_path(path: CriticalPath) -> Iterator[Advice]:
    of_nodes = [cause for cause in path.causes if cause.kind is CauseKind.NODE]
    on_nodes = {rank for cause in of_nodes for rank in cause.ranks}
    for cause in of_nodes:
        share = _share(path, cause)
        yield Advice(Topic.SLOW_NODE, cause.ranks, cause.host, share=share, gain_ns=cause.gain_ns, cause=cause)
    named: set[int] = set()
    for cause in path.causes:
        share, gain_ns = _share(path, cause), cause.gain_ns
        match cause.kind:
            case CauseKind.STAGE:
                yield Advice(Topic.UNEQUAL_STAGES, cause.ranks, share=share, gain_ns=gain_ns)
            case CauseKind.LINE | CauseKind.RANK:
                is_new = not named.issuperset(cause.ranks)
                named.update(cause.ranks)
                if is_new and share >= TWICE / len(path.ranks) and not on_nodes.issuperset(cause.ranks):
                    yield Advice(
                        Topic.SLOW_RANK, cause.ranks, cause.host, cause.label, share=share, gain_ns=gain_ns, cause=cause
                    )
            case CauseKind.NODE | CauseKind.TRANSFER:
                pass  # before and after these
    transfer = path.by_kind[PathKind.TRANSFER] / path.path_ns if path.path_ns else 0.0
    longest = next((cause for cause in path.causes if cause.kind is CauseKind.TRANSFER), None)
    if transfer >= EXPOSED and longest is not None:
        yield Advice(Topic.EXPOSED, label=longest.label, share=transfer, gain_ns=longest.gain_ns)


def _share(path: CriticalPath, cause: Cause) -> float:
    """How much of the path is computing of some ranks."""
    own = sum(one.on_path_ns for one in path.by_rank if one.rank in cause.ranks)
    return own / path.path_ns if path.path_ns else 0.0


def _of_graph(graph: Graph, calls: WorldCalls) -> Iterator[Advice]:
    steps = max(1, calls.steps)
    for groups in (*graph.axes, *graph.groups):
        roles = [one.role for one in groups.roles]
        busy = next((role for role in roles if role in _WITHIN_LAYERS), None)
        if busy is not None and groups.across_hosts and calls.has_steps:
            yield Advice(
                Topic.ACROSS_NODES,
                role=busy.value,
                groups=groups.across_hosts,
                step_bytes=round(groups.sent_bytes / steps),
            )
        if calls.has_steps and any(role in _OF_GRADIENTS for role in roles):
            yield from _small(groups, calls, steps)
        if groups.imbalance is not None and groups.imbalance.typical_ratio >= UNEQUAL and Role.EXPERT in roles:
            yield Advice(
                Topic.EXPERTS,
                (groups.imbalance.rank,),
                role=Role.EXPERT.value,
                groups=len(groups.members),
                ratio=groups.imbalance.typical_ratio,
            )


def _small(groups: ParallelGroups, calls: WorldCalls, steps: int) -> Iterator[Advice]:
    own = [calls.groups[members] for members in groups.members if members in calls.groups]
    if not own:
        return
    busiest = max(own, key=_exchanges)
    members = len(groups.members[0])
    operations = _exchanges(busiest) / members / steps
    sent = busiest.sent / max(1, _exchanges(busiest))
    if operations > MANY_OPERATIONS and sent < SMALL_BYTES:
        role = next(one.role for one in groups.roles if one.role in _OF_GRADIENTS)
        yield Advice(
            Topic.SMALL,
            role=role.value,
            groups=len(groups.members),
            step_operations=round(operations),
            operation_bytes=round(sent),
        )


def _exchanges(group: GroupCalls) -> int:
    """Calls of all members that exchange more than a loss or a norm."""
    return sum(count.calls for kind, count in group.kinds.items() if not kind.is_small)
