"""Recorded calls of ranks without processes."""

from __future__ import annotations

from collections.abc import Mapping

from otel_torchdist.model.calls import Arrival, Channel, GroupView, OperationId, OperationView
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.kinds import How
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.snapshot import RankView
from tests.support.tapes.made_records import made_operation, made_view
from tests.support.worlds.fake_world import START_NS


def history_of(view: RankView, groups: Mapping[str, GroupView], world_size: int) -> RankHistory:
    """Return the calls of a rank in these groups, from its progress: ended calls, then open calls."""
    operations: list[OperationView] = []
    for channel, progress in view.progress.items():
        for arrival in progress.recent:
            if channel.group in groups and view.at(OperationId(channel, arrival.sequence)) is None:
                operations.append(_ended(channel, arrival, groups[channel.group], len(operations)))
    return RankHistory(view.rank, world_size, view.host, 0, (*operations, *view.open), 0)


def _ended(channel: Channel, arrival: Arrival, group: GroupView, number: int) -> OperationView:
    assert arrival.signature is not None
    entered_ns = START_NS - 1_000_000 + 10 * number
    record = made_operation(
        number,
        entered_ns,
        arrival.sequence,
        message_bytes=64,
        peer=arrival.root,
        completed_ns=entered_ns + 1,
        how=How.CALL,
    )
    site = CallSiteName("train", "/home/user/train.py", 42)
    return made_view(record, arrival.signature.operation, channel, group, arrival.signature, site)
