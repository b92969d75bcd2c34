"""The verdict `stuck`: ranks that do not leave a collective although others have, and cases without a named rank."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import pytest

from otel_torchdist.judge.verdict.judging.judge import Judge
from otel_torchdist.judge.verdict.past.last_moment import LastMoment
from otel_torchdist.judge.verdict.past.post_mortem import judge, roots_of, stalled_verdict
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.model.calls import Channel, GroupView, OperationId
from otel_torchdist.model.kinds import Flag, How, RecordKind
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.node.processes.state import HEARTBEAT_LATE_NS
from tests.support.worlds.fake_world import SECOND, THRESHOLD_NS, FakeWorld, group_of
from tests.support.worlds.steps import EVERYBODY, Judged, Step, calls, has, leaves, lost

PAIR = group_of(2, 3, description="mesh_tp")
WIDER = group_of(2, 3, 4, description="mesh_pp")
UNALIGNED = group_of(0, 1, description="mesh_dp", aligned=False)
FIRST = OperationId(Channel(RecordKind.OPERATION, EVERYBODY.key), 1)
ALL = range(4)
NOW_S, OUT_S = 20.0, 1.0
MESSAGE = Flag.POINT_TO_POINT | Flag.ON_DEVICE
RULES = StallRules(THRESHOLD_NS)


def enqueue(
    ranks: Iterable[int],
    name: str = "all_reduce",
    group: GroupView | None = EVERYBODY,
    begun_s: float | None = 0.5,
    out: Iterable[int] = (),
    out_s: float = OUT_S,
    how: How = How.WATCHDOG,
    message_bytes: int = 64,
) -> Step:
    """Let ranks enqueue an operation on devices, which reach it at `begun_s` or never; some ranks leave it."""

    def step(world: FakeWorld) -> None:
        for rank in ranks:
            fake = world.ranks[rank]
            number = fake.enter(group, 0.1, name, flags=Flag.ON_DEVICE, blocking=False, message_bytes=message_bytes)
            if begun_s is not None:
                world.ranks[rank].begin_on_device(number, begun_s)
            if rank in {*out}:
                world.ranks[rank].end(number, out_s, how)

    return step


def devices(
    name: str = "all_reduce",
    still_in: Iterable[int] = (3,),
    out_s: float = OUT_S,
    how: How = How.WATCHDOG,
    message_bytes: int = 64,
) -> Step:
    """Let all ranks enqueue an operation, and all but some leave it."""
    return enqueue(ALL, name, out={*ALL} - {*still_in}, out_s=out_s, how=how, message_bytes=message_bytes)


def go_on(name: str = "all_reduce", message_bytes: int = 64) -> tuple[Step, Step]:
    """Let all ranks enqueue another operation; ranks 0 and 1 leave it, and the others' devices do not reach it."""
    return (
        enqueue((0, 1), name, begun_s=0.6, out=(0, 1), message_bytes=message_bytes),
        enqueue((2, 3), name, begun_s=None, message_bytes=message_bytes),
    )


def hosts(blocking: Iterable[int] = (), called: Iterable[int] = ()) -> tuple[Step, ...]:
    """Do the same on hosts, as with gloo; ranks either block in the call or have continued after it."""
    out = {*ALL} - {*blocking} - {*called}
    return (
        calls(ALL if not called else {*ALL} - {*called}, at_s=0.1),
        calls(called, at_s=0.1, blocking=False),
        leaves(out, OUT_S),
    )


@dataclasses.dataclass(frozen=True)
class Stuck(Judged):
    """A world, and the verdict on the group's first operation: by default, rank 3 is stuck in it."""

    kind: VerdictKind | None = VerdictKind.STUCK
    ranks: tuple[int, ...] = (3,)
    now_s: float = NOW_S
    of: int | OperationId | None = FIRST


def unnamed(*steps: Step, of: OperationId | None = FIRST, now_s: float = NOW_S) -> Stuck:
    """Build a case in which no rank may be named."""
    return Stuck(steps, VerdictKind.TRANSPORT, (), of=of, now_s=now_s)


BOTH = devices(still_in=(2, 3))
NAMED = {
    "All others have left the operation: nothing but this rank's own side can keep it in there": Stuck(
        (devices(),),
        says=(
            "rank 3 has not come out of all_reduce (sequence 1, default_pg) for 19.5 s, although others have; it is in "
            "all_reduce, called in train at train.py:42; 1 of 4 ranks waits; ranks 0-2 have left it. Its device, or "
            "its connection to them, is stuck or broken"
        ),
    ),
    **{
        f"The rule holds for each kind of operation whose result depends on every rank: {name}": Stuck((devices(name),))
        for name in ("all_gather_into_tensor", "reduce_scatter_tensor", "barrier", "all_to_all_single")
    },
    "Others have come out of a later collective, in which both took part: both are named": Stuck(
        (BOTH, *go_on()),
        ranks=(2, 3),
        says=(
            "ranks 2-3 have not come out of all_reduce (sequence 1, default_pg) for 19.5 s, although others have; "
            "rank 2 is in all_reduce, called in train at train.py:42; 2 of 4 ranks wait; ranks 0-1 have left it. "
            "Their devices, or their connections to them, are stuck or broken; rank 3 is in all_reduce, called "
            "in train at train.py:42"
        ),
    ),
    "A communicator works in order: a rank that took part in a later operation has been through a rooted one": Stuck(
        (devices("broadcast", still_in=(2, 3)), *go_on()), ranks=(2, 3)
    ),
    "Others wait for it in a later operation: the search ends where it is stuck": Stuck(
        (devices(), enqueue((0, 1, 2), begun_s=1.5)), of=None
    ),
    "A process that does not run cannot see that it has come out": Stuck(
        (devices(), has(3, stopped="T")), VerdictKind.FROZEN
    ),
    "With gloo a thread waits in the call": Stuck(
        hosts(blocking=(3,)),
        says=(
            "rank 3 has not come out of all_reduce (sequence 1, default_pg) for 19.9 s, although others have; it is in "
            "all_reduce, called in train at train.py:42; 1 of 4 ranks waits; ranks 0-2 have left it. Its process, or "
            "its connection to them, is stuck or broken"
        ),
    ),
    "With gloo a thread waits for what it has called": Stuck(
        (*hosts(called=(3,)), lambda world: world.ranks[3].wait_for(1, 0.3))
    ),
    "A barrier has no data, and every rank waits for every other": Stuck((devices("barrier", message_bytes=0),)),
    "It has come out with an exception, and is named for that": Stuck(
        (devices(), leaves(3, 5.0, How.FAILED, "TIMEOUT")), VerdictKind.TRANSPORT
    ),
    "On devices a later end shows that of this operation, even one that did not need this rank": Stuck(
        (
            devices(),
            enqueue((0, 1, 2), "broadcast", begun_s=0.7, out=(0, 1, 2)),
            enqueue((3,), "broadcast", begun_s=None),
        )
    ),
    "On devices a later end shows this one, whatever records of others were lost": Stuck(
        (devices(), lost(0), lost(1), lost(2))
    ),
    "What else it has under way, in a group that is known, matters not": Stuck(
        (devices(), enqueue((3,), group=PAIR, begun_s=None))
    ),
    "Of a send only the two ends matter, not a rank of the group without data": Stuck(
        (devices(), calls(3, WIDER, 0.2, "send", flags=MESSAGE, peer=2, blocking=False))
    ),
    "A rank whose Python threads do not run is named if others have waited for it for long": Stuck(
        (devices(), has(3, heartbeat_age_s=HEARTBEAT_LATE_NS / SECOND + 1), enqueue((0, 1, 2), begun_s=12.0)),
        now_s=23.0,
    ),
}
UNNAMED = {
    "With gloo, an asynchronous operation may have ended long ago: it was not checked since": unnamed(
        *hosts(called=(3,))
    ),
    "Hosts run several operations of a group at a time: a later one shows nothing about this one": unnamed(
        *hosts(called=(2, 3)), calls(ALL, at_s=0.2), leaves((0, 1), OUT_S)
    ),
    "The others have come out of a later operation: of this one's end there may be no record": unnamed(
        *hosts(called=(3,)),
        lambda world: world.ranks[3].wait_for(1, 0.3),
        calls(ALL, at_s=0.2, blocking=False),
        leaves((0, 1, 2), OUT_S),
    ),
    "A rank whose Python threads do not run cannot see ends": unnamed(
        devices(), has(3, heartbeat_age_s=HEARTBEAT_LATE_NS / SECOND + 1)
    ),
    "Such a rank is not named before others have waited for it for long": unnamed(
        devices(), has(3, heartbeat_age_s=HEARTBEAT_LATE_NS / SECOND + 1), enqueue((0, 1, 2), begun_s=12.0)
    ),
    "Such a rank has enqueued what the others wait for": unnamed(
        devices(),
        has(3, heartbeat_age_s=HEARTBEAT_LATE_NS / SECOND + 1),
        enqueue((0, 1, 2), begun_s=12.0),
        enqueue((3,), begun_s=None),
        now_s=23.0,
    ),
    "Rings pass data on: of two ranks that have not come out, one may wait for the other": unnamed(BOTH),
    **{
        f"Ranks leave a rooted operation without having waited for all others: {name}": unnamed(devices(name))
        for name in ("broadcast", "reduce", "gather", "scatter", "monitored_barrier")
    },
    "A sender goes on before the other side has received": unnamed(lambda world: sent(world), of=None),
    "The others may have received nothing in an all_to_all from a device that is busy with earlier work": unnamed(
        enqueue((2, 3), group=PAIR), devices("all_to_all_single")
    ),
    "No rank waits for a rank without data": unnamed(devices(message_bytes=0)),
    "No rank waits for a rank without data in a later operation": unnamed(BOTH, *go_on(message_bytes=0)),
    "Both have enqueued more, out of which none has come": unnamed(
        BOTH, enqueue((0, 1), begun_s=OUT_S), enqueue((2, 3), begun_s=None)
    ),
    "A later broadcast does not show that these ranks have been through this operation": unnamed(
        BOTH, *go_on("broadcast")
    ),
    "The others have only just come out: this rank was read before them": unnamed(devices(out_s=NOW_S - 1.0)),
    "The others still come out of operations: its device works, its ends are only seen late": unnamed(
        BOTH, *go_on(), enqueue((0, 1), begun_s=12.0, out=(0, 1), out_s=NOW_S - 1.0), enqueue((2, 3), begun_s=None)
    ),
    "The others cannot have come out of what it has not entered: it was read before them": unnamed(
        devices(), enqueue((0, 1, 2), out=(0, 1, 2))
    ),
    "Its own end of a later operation is known, so counts are not those of one communicator": unnamed(
        devices(), enqueue(ALL, out=ALL, how=How.WAIT)
    ),
    **{
        f"After an error of a device nothing is known of its operations: {how.name}": unnamed(devices(how=how))
        for how in (How.UNTRACKED, How.ABANDONED)
    },
    "Of one of the others it is only assumed that it has come out": unnamed(BOTH, leaves(2, OUT_S, How.UNTRACKED)),
    "What it does in another group shows nothing about its work in this one": unnamed(
        BOTH, *go_on("broadcast"), enqueue((2, 3), group=PAIR), enqueue((2, 3), group=PAIR)
    ),
    "Who takes part in what else it has under way is not known": unnamed(
        devices(), enqueue((3,), group=None, begun_s=None)
    ),
    "It has work under way with a rank that does not report, which may keep its host or device busy": unnamed(
        devices(), enqueue((3,), group=group_of(3, 4, description="mesh_pp"), begun_s=None)
    ),
}
UNKNOWN = {
    "A rank of the group does not report: it may be what is wrong": Stuck(
        (devices(),), VerdictKind.UNKNOWN, (), only=(0, 1, 3)
    ),
    "Sequences that were not counted from the group's first operation show nothing": Stuck(
        (enqueue((0, 1), group=UNALIGNED, out=(0,)),), VerdictKind.UNKNOWN, (), size=2, of=None
    ),
    "What is usual at the call site counts as much as the threshold": Stuck(
        (has(3, tolerance_s=60.0), devices()), None, ()
    ),
}
ROWS = NAMED | UNNAMED | UNKNOWN


def sent(world: FakeWorld) -> None:
    """Let rank 2's device send a message that rank 3's has not received."""
    for rank, name in ((2, "send"), (3, "recv")):
        number = world.ranks[rank].enter(PAIR, 0.1, name, flags=MESSAGE, peer=5 - rank, blocking=False)
        world.ranks[rank].begin_on_device(number, 0.5)
        if rank == 2:
            world.ranks[rank].end(number, OUT_S, How.WATCHDOG)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_verdict(row: Judged) -> None:
    """Check one row: the verdict on its world."""
    row.check()


def test_two_groups_with_a_broken_device_each() -> None:
    """Every stuck rank is named, and verdicts that name no further rank are left out."""
    world = FakeWorld(4)
    for ranks, label in (((0, 1), "lower"), ((2, 3), "upper")):
        enqueue(ranks, group=group_of(*ranks, description=label), out=ranks[:1])(world)
    moment = LastMoment(world.snapshot(NOW_S), True, {})
    assert [(root.kind, root.ranks) for root in roots_of(moment, RULES)] == [
        (VerdictKind.STUCK, (1,)),
        (VerdictKind.STUCK, (3,)),
    ]
    enqueue(ALL, begun_s=0.7, out=(0, 2))(world)
    enqueue(ALL, begun_s=None, out=(0, 2))(world)
    moment = LastMoment(world.snapshot(NOW_S), True, {})
    [root] = roots_of(moment, RULES)
    assert (root.kind, root.ranks, root.places.keys()) == (VerdictKind.STUCK, (1, 3), {0, 1, 2, 3})
    live = judge(moment, RULES)
    assert live is not None
    assert live.agrees_with(root)


def test_a_world_without_a_stall_has_no_root() -> None:
    """Without waits, there is no verdict."""
    assert roots_of(LastMoment(Stuck((devices(still_in=()),)).snapshot(), True, {}), RULES) == []


def test_an_absent_rank_elsewhere() -> None:
    """A rank missing in another operation may be why this rank's host does not poll: the missing rank is named."""
    world = Stuck((devices(), enqueue((0,), group=group_of(0, 1, description="mesh_dp")))).snapshot()
    verdict = stalled_verdict(world, RULES)
    assert verdict is not None
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, (1,))


@pytest.mark.parametrize(("now_s", "kind"), [(NOW_S, VerdictKind.TRANSPORT), (NOW_S + 10.0, VerdictKind.STUCK)])
def test_a_wait_that_has_only_just_begun(now_s: float, kind: VerdictKind) -> None:
    """If only a wait shows an end, the duration of the wait counts, not the age of the operation."""
    world = FakeWorld(4)
    number = world.ranks[3].enter(PAIR, 0.2, flags=Flag.END_BY_WAIT, blocking=False)
    world.ranks[2].end(world.ranks[2].enter(PAIR, 0.2), OUT_S)
    world.ranks[3].wait_for(number, NOW_S - 1.0)
    verdict = Judge(world.snapshot(now_s), THRESHOLD_NS).verdict_on(
        OperationId(Channel(RecordKind.OPERATION, PAIR.key), 1)
    )
    assert verdict is not None
    assert verdict.kind is kind


@pytest.mark.parametrize(("now_s", "kind"), [(5.0, VerdictKind.TRANSPORT), (6.0, VerdictKind.STUCK)])
def test_a_short_threshold_does_not_outrun_the_watchdog(now_s: float, kind: VerdictKind) -> None:
    """Even with a short threshold, unrecorded ends get the time that a watchdog may take."""
    verdict = Judge(Stuck((devices(out_s=0.6),), now_s=now_s).snapshot(), SECOND).verdict_on(FIRST)
    assert verdict is not None
    assert verdict.kind is kind


def test_a_channel_of_which_only_the_operation_is_known() -> None:
    """A restarted agent may find an open operation without earlier records of its channel."""
    world = Stuck((devices(),)).snapshot()
    views = {**world.ranks, 3: dataclasses.replace(world.ranks[3], progress={})}
    verdict = Judge(dataclasses.replace(world, ranks=views), THRESHOLD_NS).verdict_on(FIRST)
    assert verdict is not None
    assert verdict.kind is VerdictKind.TRANSPORT
