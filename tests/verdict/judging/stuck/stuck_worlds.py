"""Ranks in a collective out of which some have come, on simulated devices and hosts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from otel_torchdist.tape.layout import Flag, How, RecordKind
from otel_torchdist.verdict.judging.judge import Judge
from otel_torchdist.verdict.model import Verdict, VerdictKind
from otel_torchdist.world.calls import Channel, GroupView, OperationId
from otel_torchdist.world.model import WorldSnapshot
from tests.support.worlds.fake_world import THRESHOLD_NS, FakeWorld, group_of

EVERYBODY = group_of(0, 1, 2, 3, description="default_pg")
PAIR = group_of(2, 3, description="mesh_tp")
NOW_S = 20.0
OUT_S = 1.0


def enqueue(
    world: FakeWorld,
    rank: int,
    name: str = "all_reduce",
    group: GroupView | None = EVERYBODY,
    begun_s: float | None = 0.5,
    message_bytes: int = 64,
) -> int:
    """A rank enqueues an operation on its device, which reaches it at `begun_s`, or never."""
    fake = world.ranks[rank]
    number = fake.enter(group, 0.1, name, flags=Flag.ON_DEVICE, blocking=False, message_bytes=message_bytes)
    if begun_s is not None:
        fake.begin_on_device(number, begun_s)
    return number


def run_on_devices(
    name: str = "all_reduce",
    still_in: Iterable[int] = (3,),
    out_s: float = OUT_S,
    message_bytes: int = 64,
    how: How = How.WATCHDOG,
) -> FakeWorld:
    """Four ranks enqueue an operation; all come out of it but those in `still_in`."""
    world = FakeWorld(4)
    for rank in range(4):
        number = enqueue(world, rank, name, message_bytes=message_bytes)
        if rank not in still_in:
            world.ranks[rank].end(number, out_s, how)
    return world


def run_on_hosts(still_in: Mapping[int, bool]) -> FakeWorld:
    """The same on the ranks' hosts, as with gloo; the ranks in `still_in` block in the call, or called and went on."""
    world = FakeWorld(4)
    for rank in range(4):
        number = world.ranks[rank].enter(EVERYBODY, 0.1, blocking=still_in.get(rank, True))
        if rank not in still_in:
            world.ranks[rank].end(number, OUT_S)
    return world


def verdict_on(world: WorldSnapshot, sequence: int = 1, threshold_ns: int = THRESHOLD_NS) -> Verdict:
    """The verdict on one operation of the group of all ranks."""
    verdict = Judge(world, threshold_ns).verdict_on(OperationId(Channel(RecordKind.OPERATION, EVERYBODY.key), sequence))
    assert verdict is not None
    return verdict


def kind_and_ranks(world: FakeWorld, now_s: float = NOW_S) -> tuple[VerdictKind, tuple[int, ...]]:
    """What the verdict on the first operation is, and whom it names."""
    verdict = verdict_on(world.snapshot(now_s))
    return verdict.kind, verdict.ranks


UNNAMED = (VerdictKind.TRANSPORT, ())
NAMED = (VerdictKind.STUCK, (3,))


def go_on(world: FakeWorld, name: str = "all_reduce", message_bytes: int = 64) -> None:
    """All ranks enqueue another operation; ranks 0 and 1 come out of it."""
    for rank in range(4):
        number = enqueue(world, rank, name, begun_s=None if rank > 1 else 0.6, message_bytes=message_bytes)
        if rank < 2:
            world.ranks[rank].end(number, OUT_S, How.WATCHDOG)
