"""What an answer leaves out of ranks that use very many channels or operations, and that it says so."""

from __future__ import annotations

import dataclasses

import pytest

from otel_torchdist.agent.exchange.codec import MAX_CHANNELS, MAX_OPEN
from otel_torchdist.model.calls import Channel, OperationId, Progress
from otel_torchdist.model.kinds import Flag, RecordKind
from otel_torchdist.model.snapshot import WorldSnapshot
from tests.agent.exchange.messages.test_codec import EVERYBODY, PAIR, sent
from tests.support.worlds.fake_world import RUN, FakeWorld


def with_channels(*channels: Channel, open_in: Channel | None = None) -> WorldSnapshot:
    """A rank with progress in many channels, in this order, and an open operation in one of them."""
    world = FakeWorld(1)
    world.ranks[0].enter(EVERYBODY, 1.0)
    view = world.snapshot(2.0).ranks[0]
    (operation,) = view.open
    opened = () if open_in is None else (dataclasses.replace(operation, operation_id=OperationId(open_in, 1)),)
    view = dataclasses.replace(view, progress=dict.fromkeys(channels, Progress(1)), open=opened)
    return WorldSnapshot(RUN, view.heartbeat_ns, {0: view})


def p2p_channel(tag: int) -> Channel:
    """A channel of sends."""
    return Channel(RecordKind.OPERATION, PAIR.key, 0, 1, tag)


def group_channel(nth: int) -> Channel:
    """A channel of a group's collectives."""
    return Channel(RecordKind.OPERATION, f"{nth:08x}")


def test_as_many_channels_as_may_be() -> None:
    """Up to the bound, of collectives and of sends each, nothing is left out, and nothing is reported missing."""
    channels = [*map(p2p_channel, range(MAX_CHANNELS)), *map(group_channel, range(MAX_CHANNELS))]
    (view,) = sent(with_channels(*channels))
    assert view.progress.keys() == set(channels)
    assert not view.forgotten


@pytest.mark.parametrize("make", [p2p_channel, group_channel])
def test_more_channels_than_may_be(make: type) -> None:
    """The newest channels are kept, and the one in use, however old; the others are reported missing."""
    channels = [make(number) for number in range(MAX_CHANNELS + 50)]
    (view,) = sent(with_channels(*channels, open_in=channels[3]))
    assert view.progress.keys() == {channels[3], *channels[-MAX_CHANNELS:]}
    assert view.forgotten


def test_sends_push_out_no_collectives() -> None:
    """However many tags a job uses, the progress of its ranks in their collectives is known."""
    groups = [group_channel(number) for number in range(100)]
    (view,) = sent(with_channels(*groups, *map(p2p_channel, range(5 * MAX_CHANNELS))))
    assert set(groups) <= view.progress.keys()
    assert len(view.progress) == MAX_CHANNELS + 100


def test_oldest_open_operations_are_kept() -> None:
    """Of very many operations in flight, those that have waited longest are sent."""
    world = FakeWorld(1)
    for _ in range(MAX_OPEN + 10):
        world.ranks[0].enter(EVERYBODY, 1.0, blocking=False, flags=Flag.ASYNC)
    (view,) = sent(world.snapshot(2.0))
    assert [operation.record.number for operation in view.open] == list(range(1, MAX_OPEN + 1))
