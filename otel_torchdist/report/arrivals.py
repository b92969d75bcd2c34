"""How long a call waited for other ranks, looked up one call at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from otel_torchdist.model.calls import Channel, OperationView
from otel_torchdist.statistics.calls import UNKNOWN, RankCalls
from otel_torchdist.statistics.meetings import SharedChannel, shared_channels
from otel_torchdist.statistics.splitting import awaited_arrivals, waiting_at

_NOT_KNOWN: Final = -1


class Arrivals:
    """When the members of groups arrived at their operations."""

    def __init__(self, ranks: Mapping[int, RankCalls]) -> None:
        """Take the calls of all ranks, by ascending rank."""
        self._channels: dict[Channel, SharedChannel] = {one.channel: one for one in shared_channels(ranks)}
        self._awaited: dict[tuple[Channel, int], dict[int, int]] = {}

    def waited_ns(self, rank: int, view: OperationView, length_ns: int) -> int:
        """How long a call of a rank waited for the one that it had to wait for; -1 if that is not known.

        Args:
            rank: The rank.
            view: Its call.
            length_ns: How long the call took; -1 if it is open.
        """
        channel, sequence = view.operation_id
        awaited = self._awaited_at(channel, sequence).get(rank)
        if awaited is None or length_ns < 0:
            return _NOT_KNOWN
        return min(max(awaited - view.record.arrived_ns, 0), length_ns)

    def _awaited_at(self, channel: Channel, sequence: int) -> dict[int, int]:
        """By rank, when the one arrived for which it waited, as far as that is known."""
        found = self._awaited.get((channel, sequence))
        if found is None:
            found = self._awaited[channel, sequence] = self._looked_up(channel, sequence)
        return found

    def _looked_up(self, channel: Channel, sequence: int) -> dict[int, int]:
        shared = self._channels.get(channel)
        if shared is None or not shared.has_one_clock or sequence < shared.first:
            return {}
        meeting = shared.meeting_at(sequence)
        arrived = [member.calls.arrived[place] for member, place in meeting.calls]
        if meeting.missing or UNKNOWN in arrived:
            return {}
        awaited = awaited_arrivals(meeting, waiting_at(meeting), arrived)
        return {
            member.rank.rank: until_ns
            for (member, _), until_ns in zip(meeting.calls, awaited, strict=True)
            if until_ns is not None
        }
