"""The groups of a job as dumps name them: one name for all members, and no name twice.

Each direction between two ranks that send gets a group of its own. In a group of more than two, `torchfrtrace` takes
all others for missing that take no part in a `send`; and only for each direction and tag do both sides count alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from otel_torchdist.flight.dump import FlightGroup
from otel_torchdist.model.calls import Channel, GroupView, OperationView

_UNDEFINED = "undefined"
"""What torch writes for a group without a description."""


@dataclass(frozen=True, slots=True)
class NumberedGroup:
    """A group in dumps.

    Attributes:
        number: Its `pg_id`; here it is the same on all ranks.
        group: Its name, description and members.
    """

    number: int
    group: FlightGroup


def groups_of(operations: Iterable[OperationView]) -> dict[Channel, NumberedGroup]:
    """Name the groups of these operations, by their channels."""
    channels: dict[Channel, GroupView] = {}
    for operation in operations:  # of the lowest rank first: a group may have another label on each
        if operation.group is not None:
            channels.setdefault(operation.operation_id.channel, operation.group)
    names = _names({view.key: view for view in channels.values()})
    ordered = sorted(channels, key=lambda one: (names[one.group], one.source, one.destination, one.tag))
    return {
        channel: NumberedGroup(number, _group(channel, channels[channel], names[channel.group]))
        for number, channel in enumerate(ordered)
    }


def _names(views: dict[str, GroupView]) -> dict[str, str]:
    """By key, the group's name; with the key where another group has that name."""
    taken: set[str] = set()
    names: dict[str, str] = {}
    for key, view in sorted(views.items(), key=lambda item: (item[1].name.nth, item[0])):
        name = view.name.name or key
        names[key] = f"{name} {key}" if name in taken else name
        taken.add(name)
    return names


def _group(channel: Channel, view: GroupView, name: str) -> FlightGroup:
    description = view.name.description or _UNDEFINED
    if not channel.is_point_to_point:
        return FlightGroup(name, description, view.name.ranks)
    tag = f" tag {channel.tag}" if channel.tag else ""
    between = tuple(sorted({channel.source, channel.destination}))
    return FlightGroup(f"{name} p2p {channel.source}->{channel.destination}{tag}", description, between)
