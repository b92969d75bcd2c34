"""Snapshots of ranks over the wire and back: a verdict loses nothing that it needs, and times fit the other clock."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_torchdist.agent.exchange.codec import answer_of, views_of, without_local_fields
from otel_torchdist.agent.exchange.wire import (
    WireError,
    decode_answer,
    encode,
)
from otel_torchdist.judge.verdict.roll_call import Standing
from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.model.calls import Arrival, Channel, GroupView, OperationId, OperationView, Progress, Window
from otel_torchdist.model.kinds import Flag, RecordKind, TapeState
from otel_torchdist.model.names import CallSiteName, GroupName, RaisedName, SignatureName
from otel_torchdist.model.rank_state.occupations import CheckpointView, FailedCheckpoint, RankCheckpoints, SharedGroup
from otel_torchdist.model.rank_state.stacks import Stacks, ThreadStack
from otel_torchdist.model.rank_state.symptoms import Symptom, SymptomKind
from otel_torchdist.model.rank_state.values import ComparedParameters, OutputChecksum, RankValues
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.model.text import MemberRank
from tests.support.worlds.fake_world import RUN, SECOND, WALL_OFFSET_NS, FakeWorld, group_of
from tests.support.worlds.judging import the_verdict

EVERYBODY = group_of(0, 1, 2, 3, description="default_pg")
PAIR = group_of(1, 2, nth=1)
MINUTE = 60 * SECOND
P2P = Flag.POINT_TO_POINT


def eventful_world() -> FakeWorld:
    """Ranks that have done, and are doing, one of everything."""
    world = FakeWorld(4)
    world.meet(EVERYBODY, 1.0)
    failed = world.ranks[0].enter(EVERYBODY, 2.0, "broadcast", peer=3)
    world.ranks[0].end(failed, 2.5, failure="RuntimeError")
    world.ranks[0].label = "läufer"
    world.ranks[0].enter(EVERYBODY, 3.0, shape=(), dtype="bfloat16", reduce_op="")
    world.ranks[1].enter(PAIR, 3.5, "send", flags=P2P | Flag.ASYNC, peer=2, tag=7, blocking=False)
    waited = world.ranks[2].enter(PAIR, 3.6, "recv", flags=P2P | Flag.END_BY_WAIT, peer=1, tag=7, blocking=False)
    world.ranks[2].wait_for(waited, 4.0)
    world.ranks[2].begin_on_device(world.ranks[2].enter(EVERYBODY, 4.5), 4.6)
    world.ranks[2].enter(group_of(2, 3, nth=5), 4.8, kind=RecordKind.RENDEZVOUS, thread=101)
    world.ranks[2].expects_until_s, world.ranks[2].tolerance_s = 90.0, 3.0
    world.ranks[2].view(4.8)
    world.ranks[2].lose_records()
    world.ranks[1].stopped, world.ranks[1].stopped_since_s = "T", 4.2
    world.ranks[2].checkpoints = RankCheckpoints(
        (CheckpointView("save", "/ckpt/1", 7, "write", "write_data", 4 * SECOND, 410, 2 * SECOND),),
        (FailedCheckpoint(3, "save", "/ckpt/0", "write_data", "OSError", "full", 5, 2 * SECOND, True),),
    )
    world.ranks[3].view(4.9)
    world.ranks[3].raised = RaisedName("ValueError", "loss is nan", "step", "/home/ada/train.py", 57)
    world.ranks[3].die(5.0, TapeState.FAILED, "ValueError")
    return world


def snapshot(world: FakeWorld, now_s: float = 20.0, only: tuple[int, ...] = (0, 1, 2, 3)) -> WorldSnapshot:
    """A snapshot in which one rank has written its stacks and another one has not."""
    taken = world.snapshot(now_s, only)
    stack = ThreadStack(100, "MainThread", (CallSiteName("load", "/home/user/träin.py", 57),))
    asked = Stacks(taken.taken_ns, None, earlier=(stack,), earlier_ns=taken.taken_ns - 2 * SECOND)
    stacks = {0: Stacks(taken.taken_ns - SECOND, (stack,), by_signal=True), 1: asked}
    shared = {0: (SharedGroup(PAIR.key, ("all_reduce", "gather"), (None, stack.frames[0]), 5),)}
    views = {
        rank: dataclasses.replace(view, stacks=stacks.get(rank), shared_groups=shared.get(rank, ()))
        for rank, view in taken.ranks.items()
    }
    return dataclasses.replace(taken, ranks=views)


def sent(world: WorldSnapshot, offset_ns: int = 0, wall_offset_ns: int = WALL_OFFSET_NS) -> tuple[RankView, ...]:
    """A snapshot as another agent gets it over the wire."""
    answer = decode_answer(encode(answer_of(world, 0, False, world.taken_ns)))
    return views_of(answer, world.run, offset_ns, wall_offset_ns)


def as_local(view: RankView) -> RankView:
    """A remote view without the fields that only remote views have, and without what is not sent."""
    progress = {channel: _sent_of(channel, reached) for channel, reached in view.progress.items()}
    return dataclasses.replace(view, is_remote=False, groups={}, progress=progress)


def _sent_of(channel: Channel, reached: Progress) -> Progress:
    return reached._replace(recent=()) if channel.is_point_to_point else reached


def test_all_that_matters_arrives() -> None:
    """With equal clocks a view arrives unchanged, including failures, labels, devices, stacks and stopped processes."""
    world = snapshot(eventful_world())
    views = sent(world)
    assert [as_local(view) for view in views] == [as_local(view) for view in world.in_order]
    assert all(view.is_remote for view in views)
    groups = {EVERYBODY.key: EVERYBODY, PAIR.key: PAIR}
    assert groups.items() <= dict(views[0].groups).items()
    assert views[0].groups == views[3].groups


def test_checksums_arrive() -> None:
    """With the groups that they are of, and without the names of parameters, which are many."""
    world = snapshot(eventful_world())
    of_pair = OperationId(Channel(RecordKind.NUMERICS, PAIR.key), 7)
    compared = ComparedParameters(2, (1, 2, 3, 4, 5), ("weight", "bias"))
    values = RankValues(outputs=(OutputChecksum(of_pair, "parameters", 6, 1 << 47, compared),))
    view = dataclasses.replace(world.ranks[3], values=values, groups={PAIR.key: PAIR})
    [arrived] = sent(dataclasses.replace(world, ranks={3: view}))
    assert arrived.groups[PAIR.key] == PAIR
    [output] = arrived.values.outputs
    assert output == dataclasses.replace(values.outputs[0], parameters=dataclasses.replace(compared, names=()))


def test_symptoms_of_a_machine_arrive() -> None:
    """What another node's machine has shown arrives, at the time of this node's clock."""
    world = snapshot(eventful_world())
    shown = (Symptom(SymptomKind.XID, 7 * SECOND, 79), Symptom(SymptomKind.LINK_DOWN, 8 * SECOND, detail="mlx5_0/1"))
    views = {rank: dataclasses.replace(view, symptoms=shown) for rank, view in world.ranks.items()}
    arrived = sent(dataclasses.replace(world, ranks=views), offset_ns=-2 * SECOND)[3].symptoms
    assert arrived == tuple(dataclasses.replace(one, at_ns=one.at_ns - 2 * SECOND) for one in shown)


def test_times_of_checkpoints() -> None:
    """Since when a rank has been in a stage is converted to the clock of the agent that judges."""
    world = snapshot(eventful_world())
    checkpoints = sent(world, offset_ns=MINUTE)[2].checkpoints
    assert [one.since_ns for one in checkpoints.open] == [4 * SECOND + MINUTE]
    assert [one.ended_ns for one in checkpoints.failed] == [2 * SECOND + MINUTE]


def test_types_arrive() -> None:
    """The types that the judge works with arrive: enums, named tuples and sets, not their values."""
    view = sent(snapshot(eventful_world()))[2]
    assert isinstance(view, RankView)
    assert view.state is TapeState.RUNNING
    receive = view.open[0]
    assert isinstance(receive, OperationView)
    assert isinstance(receive.record.flags, Flag)
    assert receive.record.kind is RecordKind.OPERATION
    assert isinstance(receive.operation_id, OperationId) and isinstance(receive.operation_id.channel, Channel)
    assert receive.group is not None and receive.group.members == frozenset({1, 2})
    assert all(
        isinstance(channel, Channel) and isinstance(reached, Progress) for channel, reached in view.progress.items()
    )


def test_verdict_on_remote_ranks_is_the_same() -> None:
    """The verdict on ranks from two other agents is the same as on local ranks."""
    world = FakeWorld(4)
    world.meet(EVERYBODY, 1.0)
    for rank in (0, 1, 3):
        world.ranks[rank].enter(EVERYBODY, 5.0)
    here = world.snapshot(30.0)
    views = (*sent(world.snapshot(30.0, (0, 1))), *sent(world.snapshot(30.0, (2, 3))))
    remote = dataclasses.replace(here, ranks={view.rank: view for view in views})
    verdict, same = the_verdict(here), the_verdict(remote)
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, (2,))
    assert same.agrees_with(verdict)
    assert _rolled(same) == _rolled(verdict)


@pytest.mark.parametrize(("out_s", "expected"), [(6.0, VerdictKind.STUCK), (29.0, VerdictKind.TRANSPORT)])
def test_stuck_rank_of_another_node(out_s: float, expected: VerdictKind) -> None:
    """Whose end was seen when arrives too, on the clock of the agent that judges."""
    world = FakeWorld(4)
    for rank in range(4):
        number = world.ranks[rank].enter(EVERYBODY, 5.0)
        if rank != 2:
            world.ranks[rank].end(number, out_s)
    here = world.snapshot(30.0)
    answer = decode_answer(encode(answer_of(here, 0, False, here.taken_ns)))
    views = views_of(answer, RUN, -5 * MINUTE, WALL_OFFSET_NS)
    there = dataclasses.replace(here, taken_ns=here.taken_ns - 5 * MINUTE, ranks={view.rank: view for view in views})
    assert the_verdict(there).kind is expected


def _rolled(verdict: Verdict) -> Mapping[int, Standing]:
    return verdict.roll.standings


def times_of(view: RankView) -> list[int | None]:
    """All times of a view on its node's monotonic clock."""
    operations = [*view.open, *([view.last] if view.last else [])]
    found: list[int | None] = [view.created_ns, view.heartbeat_ns, view.gone_since_ns]
    found += [time_ns for time_ns in (view.expects_until_ns, view.seen_alive_ns) if time_ns]
    found += [view.stacks.asked_ns, view.stacks.earlier_ns or None] if view.stacks else []
    found += [view.stopped.since_ns if view.stopped else None]
    for operation in operations:
        record = operation.record
        found += [record.entered_ns, record.returned_ns, record.wait_entered_ns, record.wait_returned_ns]
        found += [record.started_ns, record.completed_ns, operation.waiting_since_ns]
    found += [reached.end_observed_ns for _, reached in sorted(view.progress.items()) if reached.end_observed_ns]
    return found


@settings(max_examples=60, deadline=None)
@given(st.integers(-30 * 24 * 60 * MINUTE, 30 * 24 * 60 * MINUTE), st.integers(-SECOND, SECOND))
def test_times_are_moved_and_nothing_else(offset_ns: int, wall_ns: int) -> None:
    """With any other clock, every time is moved by the same amount, and moving back restores everything."""
    world = snapshot(eventful_world())
    moved = sent(world, offset_ns, wall_ns)
    for view, there in zip(world.in_order, moved, strict=True):
        assert times_of(there) == [None if at is None else at + offset_ns for at in times_of(view)]
        assert there.wall_offset_ns == wall_ns
    back = sent(dataclasses.replace(world, ranks={view.rank: view for view in moved}), -offset_ns)
    assert [as_local(view) for view in back] == [as_local(view) for view in world.in_order]


def test_never_stays_never() -> None:
    """A rank that expects nothing, or was never seen alive, does not get a time from being moved."""
    world = FakeWorld(1)
    world.ranks[0].die(1.0)
    view = world.snapshot(2.0).ranks[0]
    assert (view.expects_until_ns, view.seen_alive_ns) == (0, 0)
    (there,) = sent(world.snapshot(2.0), 10 * MINUTE)
    assert (there.expects_until_ns, there.seen_alive_ns) == (0, 0)


def test_windows_are_sent_without_their_calls() -> None:
    """Digests of the calls are compared across nodes; the calls themselves would be too large."""
    world = FakeWorld(1).snapshot(1.0)
    channel = Channel(RecordKind.OPERATION, EVERYBODY.key)
    windows = {channel: (Window(3, 1 << 60, (Arrival(200, None, -1),)),)}
    world = dataclasses.replace(world, ranks={0: dataclasses.replace(world.ranks[0], windows=windows)})
    (there,) = sent(world)
    assert there.windows == {channel: (Window(3, 1 << 60, ()),)}


def test_callers_are_sent_where_the_rank_is() -> None:
    """Of calls in channels that a rank is not in, the line is sent alone: there may be hundreds."""
    world = FakeWorld(2)
    frames = CallSiteName("reduce", "/home/ada/utils.py", 5), CallSiteName("main", "/home/ada/train.py", 42)
    for nth in range(2):
        world.ranks[0].end(world.ranks[0].enter(group_of(0, 1, nth=nth), 1.0 + nth, frames=frames), 1.5 + nth)
    (there,) = sent(world.snapshot(5.0, only=[0]))
    shown = [arrival.frames for progress in there.progress.values() for arrival in progress.recent]
    assert sorted(map(len, shown)) == [1, 2]
    assert {one[0] for one in shown} == {frames[0]}


def test_large_group_is_written_once() -> None:
    """A group of 4,096 ranks adds its size to an answer once, not once for each rank and operation."""
    size, local = 4_096, 64
    group = group_of(*range(size), description="default_pg")
    world = FakeWorld(local)
    for rank in world.ranks:
        for _ in range(4):
            rank.enter(group, 1.0, blocking=False, flags=Flag.ASYNC)
    answer = answer_of(world.snapshot(2.0), 0, False, 0)
    assert answer.groups == (group.name,)
    body = encode(answer)
    ranks_only = len(encode(dataclasses.replace(answer, groups=())))
    assert len(body) - ranks_only < 4 * size
    assert ranks_only < local * size
    view = views_of(decode_answer(body), RUN, 0, 0)[-1]
    assert all(operation.group is not None and operation.group.key == group.key for operation in view.open)


@pytest.mark.parametrize("place", [1, 2, 1 << 40])
def test_group_that_is_not_named(place: int) -> None:
    """An operation of a group that the answer does not name makes the answer invalid."""
    world = FakeWorld(1)
    world.ranks[0].enter(EVERYBODY, 1.0)
    answer = answer_of(world.snapshot(2.0), 0, False, 0)
    (rank,) = answer.ranks
    wrong = dataclasses.replace(rank.open[0], group=place)
    for changed in (dataclasses.replace(rank, open=(wrong,)), dataclasses.replace(rank, open=(), last=wrong)):
        with pytest.raises(WireError, match="group that is not listed"):
            views_of(dataclasses.replace(answer, ranks=(changed,)), RUN, 0, 0)


def test_operation_without_a_group() -> None:
    """A group that is missing in the tape's dictionary is missing on the other side too."""
    world = FakeWorld(1)
    world.ranks[0].enter(EVERYBODY, 1.0)
    taken = world.snapshot(2.0)
    view = taken.ranks[0]
    unknown = dataclasses.replace(view.open[0], group=None, signature=None, call_site=None)
    (there,) = sent(dataclasses.replace(taken, ranks={0: dataclasses.replace(view, open=(unknown,))}))
    assert there.open == (unknown,)
    assert there.groups == {}


def test_calls_are_shown_where_they_are_wanted() -> None:
    """Windows are sent as digests; a requested one is sent whole, even if only an earlier snapshot still has it."""
    world = FakeWorld(4)
    world.meet(EVERYBODY, 1.0)
    channel = Channel(RecordKind.OPERATION, EVERYBODY.key)
    signature = SignatureName("all_reduce", "sum", ((4,),), ("float32",), "cpu", 1)
    windows = [
        Window(number, number + 100, tuple(Arrival(number * 64 + place + 1, signature, -1) for place in range(64)))
        for number in range(4)
    ]

    def shown(*numbers: int) -> WorldSnapshot:
        snapshot = world.snapshot(2.0)
        of = {channel: tuple(windows[number] for number in numbers)}
        ranks = {rank: dataclasses.replace(view, windows=of) for rank, view in snapshot.ranks.items()}
        return dataclasses.replace(snapshot, ranks=ranks)

    wanted = ((channel, 0), (channel, 3))
    answer = decode_answer(encode(answer_of(shown(2, 3), 0, False, 0, wanted, [shown(0, 1)])))
    for view in views_of(answer, RUN, 0, 0):
        found = {window.number: window for window in view.windows[channel]}
        assert found == {0: windows[0], 2: windows[2]._replace(arrivals=()), 3: windows[3]}


def test_standalone_process_groups() -> None:
    """Processes of other worlds stay on their node, and members of such a world are no ranks of the run elsewhere."""
    name = GroupName("transfer", "", (0, 1), 0, "gloo", True, world="transfer@29655/2", world_rank=0)
    engine = MemberRank(4, "1 of transfer")
    group = GroupView(name.key, name, frozenset((0, engine)))
    world = FakeWorld(4)
    world.ranks[0].enter(group, 1.0, "recv", flags=P2P, peer=engine)
    world.ranks[1].enter(EVERYBODY, 2.0)
    seen = world.snapshot(20.0)
    others = dataclasses.replace(seen.ranks[3], rank=engine)
    [first, *rest] = sent(dataclasses.replace(seen, ranks={**seen.ranks, engine: others}))
    assert [view.rank for view in rest] == [1, 2, 3]
    [operation] = first.open
    assert operation.group is not None
    assert (operation.group.members, operation.group.is_inferred) == (frozenset(), True)
    channel = operation.operation_id.channel
    assert (channel.source, channel.destination) == (4, 0)


def test_each_time_is_converted_or_left_out() -> None:
    """No time of a rank arrives as it was on the clock of the other node."""
    world = snapshot(eventful_world())
    times = {one.name: 5 * SECOND for one in dataclasses.fields(RankView) if one.name.endswith("_ns")}
    view = dataclasses.replace(world.ranks[0], **times, asked_signal=15)  # type: ignore[arg-type]
    [arrived] = sent(dataclasses.replace(world, ranks={0: view}), offset_ns=MINUTE)
    assert [name for name in times if getattr(arrived, name) == 5 * SECOND] == []


def test_what_only_a_reader_of_tapes_knows_is_not_believed() -> None:
    """Another agent cannot say that a rank is of this node, of another run or world, or has twins."""
    world = snapshot(eventful_world())
    answer = answer_of(world, 0, False, world.taken_ns)
    forged = dataclasses.replace(answer.ranks[0].view, run=1, world="x", twins=(1, 2), fell_silent=True, is_new=True)
    changed = dataclasses.replace(answer, ranks=(dataclasses.replace(answer.ranks[0], view=forged),))
    [view] = views_of(decode_answer(encode(changed)), world.run, 0, 0)
    assert (view.run, view.world, view.twins, view.fell_silent, view.is_new) == (world.run, "", (), False, False)
    assert view.is_remote


TOLD = frozenset(
    [
        "alive",
        "asked_ns",
        "asked_signal",
        "checkpoints",
        "child",
        "created_ns",
        "death",
        "expects_until_ns",
        "failure",
        "forgotten",
        "gone_since_ns",
        "heartbeat_ns",
        "host",
        "losses",
        "nonce",
        "occupations",
        "pace",
        "progress",
        "raised",
        "rank",
        "rescue",
        "run_is_sure",
        "seen_alive_ns",
        "shared_groups",
        "stacks",
        "state",
        "step",
        "stopped",
        "switched_off_ns",
        "symptoms",
        "values",
        "windows",
        "worker",
    ]
)
"""Fields of a rank that agents tell each other, and believe."""


def test_each_field_is_told_or_dropped() -> None:
    """A new field of a rank is not believed of another agent unless it is listed here."""
    told = object()
    view = object.__new__(RankView)
    names = [one.name for one in dataclasses.fields(RankView)]
    for name in names:
        object.__setattr__(view, name, told)
    passed = without_local_fields(view)
    assert {name for name in names if getattr(passed, name) is told} == TOLD
