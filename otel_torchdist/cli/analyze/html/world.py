"""The parallelism graph in the words of `graph`, as a report has it."""

from __future__ import annotations

from typing import Final

from otel_torchdist.analysis.parallelism.graph import Graph, ParallelGroups
from otel_torchdist.analysis.parallelism.wording import balance_of, remarks_of, role_of, shape_of, span_of
from otel_torchdist.model.naming import compress_ranks
from otel_torchdist.show.report.document import GroupSet, Purpose, World

_EXAMPLES: Final = 3
_MOST_OTHERS: Final = 40


def world_of(found: Graph) -> World:
    """Describe the axes, and where each rank is."""
    names = sorted({*found.hosts.values()})
    places = {name: place for place, name in enumerate(names)}
    return World(
        shape=shape_of(found),
        axes=tuple(_groups(f"axis {nth}", axis) for nth, axis in enumerate(found.axes, 1)),
        others=tuple(_groups(span_of(one, len(found.axes)), one) for one in found.groups[:_MOST_OTHERS]),
        coordinates=tuple(number for row in found.coordinates for number in row),
        copies=found.copies,
        hosts=tuple(places.get(found.hosts.get(rank, ""), -1) for rank in range(found.world_size)),
        host_names=tuple(names),
        unknown=found.unseen,
        remarks=tuple(remarks_of(found)),
    )


def _groups(span: str, groups: ParallelGroups) -> GroupSet:
    return GroupSet(
        span=span,
        role=role_of(groups),
        size=len(groups.members[0]),
        count=len(groups.members),
        examples=tuple(compress_ranks(members, 32) for members in groups.members[:_EXAMPLES]),
        purposes=tuple(Purpose(one.role.value, one.evidence, one.calls, one.sent_bytes) for one in groups.roles),
        names=groups.names[:_EXAMPLES],
        sent=groups.sent_bytes,
        across_hosts=groups.across_hosts,
        balance=balance_of(groups),
    )
