"""The parallelism graph as part of a report, in the words of `analyze --only graph`."""

from __future__ import annotations

from typing import Final

from otel_torchdist.analysis.parallelism.graph import Graph, ParallelGroups
from otel_torchdist.analysis.parallelism.wording import balance_of, remarks_of, role_of, shape_of, span_of
from otel_torchdist.model.text import compress_ranks
from otel_torchdist.show.report.document import GroupSet, Purpose, World

_EXAMPLES: Final = 3
_MAX_OTHERS: Final = 40


def world_of(graph: Graph) -> World:
    """Describe the axes and the position of each rank."""
    names = sorted({*graph.hosts.values()})
    host_indices = {name: index for index, name in enumerate(names)}
    return World(
        shape=shape_of(graph),
        axes=tuple(_groups(f"axis {number}", axis) for number, axis in enumerate(graph.axes, 1)),
        others=tuple(_groups(span_of(groups, len(graph.axes)), groups) for groups in graph.groups[:_MAX_OTHERS]),
        coordinates=tuple(number for row in graph.coordinates for number in row),
        copies=graph.copies,
        hosts=tuple(host_indices.get(graph.hosts.get(rank, ""), -1) for rank in range(graph.world_size)),
        host_names=tuple(names),
        unknown=graph.unseen,
        remarks=tuple(remarks_of(graph)),
    )


def _groups(span: str, groups: ParallelGroups) -> GroupSet:
    return GroupSet(
        span=span,
        role=role_of(groups),
        size=len(groups.members[0]),
        count=len(groups.members),
        examples=tuple(compress_ranks(members, 32) for members in groups.members[:_EXAMPLES]),
        purposes=tuple(
            Purpose(purpose.role.value, purpose.evidence, purpose.calls, purpose.sent_bytes) for purpose in groups.roles
        ),
        names=groups.names[:_EXAMPLES],
        sent=groups.sent_bytes,
        across_hosts=groups.across_hosts,
        balance=balance_of(groups),
    )
