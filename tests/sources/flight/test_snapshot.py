"""What is concluded from dumps: which ranks are named, and what is left open."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import pytest

from otel_torchdist.judge.verdict.past.last_moment import LastMoment
from otel_torchdist.judge.verdict.past.post_mortem import roots_of
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.judge.verdict.verdict import Doubt, Verdict
from otel_torchdist.model.kinds import Flag, How
from otel_torchdist.model.operations import Splits
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.sources.flight.groups import RecordedGroups
from otel_torchdist.sources.flight.history import condense, history_of
from otel_torchdist.sources.flight.reading.decoding import decode
from otel_torchdist.sources.flight.snapshot import JobMoment, MomentKind, moment_of
from tests.sources.flight.made_dumps import SECOND, START_NS, Document, call, document, late_rank

RULES: Final = StallRules(threshold_ns=10 * SECOND)


def moment(dumps: Mapping[int, Document], world_size: int = 0) -> JobMoment:
    """The snapshot of a job."""
    decoded = [decode(json.dumps(dump).encode(), rank, "").dump for rank, dump in dumps.items()]
    return moment_of([condense(dump) for dump in decoded], world_size)


def verdicts(dumps: Mapping[int, Document], world_size: int = 0) -> list[tuple[VerdictKind, tuple[int, ...]]]:
    """Kind and ranks of each verdict."""
    return [(verdict.kind, verdict.ranks) for verdict in roots(dumps, world_size)]


def roots(dumps: Mapping[int, Document], world_size: int = 0) -> list[Verdict]:
    """The verdicts."""
    return roots_of(LastMoment(moment(dumps, world_size).world, False, {}), RULES)


def gloo(dump: Document) -> Document:
    """The same, as gloo's recorder writes it: no members, and an end is shown by retiring alone."""
    entries = [
        {**one, "profiling_name": one["profiling_name"].replace("nccl", "gloo"), "state": "scheduled"}
        | {"time_discovered_completed_ns": None}
        for one in dump["entries"]
    ]
    return {**dump, "pg_config": {"": {"name": "", "desc": "", "ranks": "[0, 1]"}}, "entries": entries}


def test_late_rank() -> None:
    """The rank that has not entered what the others wait in is named."""
    assert verdicts(late_rank()) == [(VerdictKind.ABSENT, (2,))]


def test_late_rank_on_gloo() -> None:
    """The same with gloo's recorder, from which the members are inferred."""
    dumps = {rank: gloo(dump) for rank, dump in late_rank().items()}
    assert verdicts(dumps) == [(VerdictKind.ABSENT, (2,))]
    assert moment(dumps).world_size == 4


def test_empty_dump() -> None:
    """A rank whose dump has no entries, as where only open ones are written, is judged by its counters."""
    dumps = late_rank()
    dumps[2] = document([], {"0": range(4)}, {0: (3, 3)})
    assert verdicts(dumps) == [(VerdictKind.ABSENT, (2,))]


def test_several_roots() -> None:
    """Two ranks that hold up a group each are both named."""

    def group(name: str, pg_id: int, *ranks: int) -> dict[int, Document]:
        groups = {name: ranks}
        done = [call(1, group=name, pg_id=pg_id, description="")]
        waits = call(2, group=name, pg_id=pg_id, description="", state="scheduled", at_s=1)
        return {
            rank: document(done if rank == ranks[-1] else [*done, waits], groups, {pg_id: (2 - (rank == ranks[-1]), 1)})
            for rank in ranks
        }

    dumps = {**group("1", 1, 0, 1), **group("2", 1, 2, 3)}
    assert sorted(verdicts(dumps)) == sorted([(VerdictKind.ABSENT, (1,)), (VerdictKind.ABSENT, (3,))], key=str)


def test_rank_without_a_dump() -> None:
    """A rank without a dump is unseen and blamed for nothing; the verdict on the others stands."""
    dumps = late_rank()
    del dumps[1]
    assert moment(dumps).unseen == (1,)
    assert verdicts(dumps) == [(VerdictKind.ABSENT, (2,))]
    del dumps[2]
    [verdict] = roots(dumps)
    assert (verdict.kind, verdict.doubt) == (VerdictKind.UNKNOWN, Doubt.SILENT)


@pytest.mark.parametrize(
    "change", [{"profiling_name": "nccl:broadcast"}, {"input_sizes": [[9]]}, {"input_dtypes": ["Double"]}]
)
def test_mismatch(change: Document) -> None:
    """One rank's call differs: the judge compares what the recorder knows of it."""
    dumps = late_rank(late=-1)
    dumps[1]["entries"][-1] |= change
    assert verdicts(dumps) == [(VerdictKind.MISMATCHED, (1,))]


def test_stuck_device() -> None:
    """One rank has not come out of what all others have come out of, and has enqueued more: its device is stuck."""
    size, groups = 4, {"0": range(4)}
    done, stuck = [call(1), call(2, at_s=1)], [call(1), call(2, state="scheduled", at_s=1)]
    more = call(3, state="scheduled", at_s=2)
    dumps = {rank: document([*done, more], groups) for rank in range(size)}
    dumps[3] = document([*stuck, more], groups)
    assert verdicts(dumps) == [(VerdictKind.STUCK, (3,))]


def pair(rank: int, *calls: tuple[str, int]) -> Document:
    """A rank of a group of two, with sends and receives of which the last is open."""
    entries = [
        call(0, name, p2p=number, state="completed" if nth < len(calls) - 1 else "scheduled", at_s=number)
        for nth, (name, number) in enumerate(calls)
    ]
    return document(entries, {"0": range(2)}, {0: (len(calls), len(calls) - 1)})


def test_send_without_recv() -> None:
    """In a group of two, calls of send and recv are compared: one rank has made one more than the other."""
    sends = pair(0, ("nccl:send 0->1", 1), ("nccl:send 0->1", 2))
    receives = document([call(0, "nccl:recv 1<-0", p2p=1)], {"0": range(2)}, {0: (1, 1)})
    assert verdicts({0: sends, 1: receives}) == [(VerdictKind.ABSENT, (1,))]


def test_both_send() -> None:
    """Two ranks that both send first wait for each other."""
    dumps = {0: pair(0, ("nccl:send 0->1", 1)), 1: pair(1, ("nccl:send 1->0", 1))}
    [(kind, ranks)] = verdicts(dumps)
    assert (kind, ranks) == (VerdictKind.CIRCULAR, (0, 1))


def test_pipeline() -> None:
    """In larger groups calls of each pair are counted where the dumps hold all of them, and else not compared."""

    def dumps(first: int) -> dict[int, Document]:
        names = {0: ("send 0->1", "send 0->1"), 1: ("recv 1<-0", "send 1->2"), 2: ("send 2->0", "")}
        return {
            rank: document(
                [
                    call(0, f"nccl:{done}", p2p=1),
                    *([call(0, f"nccl:{waits}", p2p=2, state="scheduled")] if waits else []),
                ],
                {"0": range(3)},
                {0: (9, 8)},
                first=first,
            )
            for rank, (done, waits) in names.items()
        }

    assert verdicts(dumps(0)) == [(VerdictKind.ABSENT, (2,))]
    [verdict, *_] = roots(dumps(500))
    assert (verdict.kind, verdict.doubt, verdict.ranks) == (VerdictKind.UNKNOWN, Doubt.UNALIGNED, ())


def test_counters_of_sends() -> None:
    """`pg_status` counts collectives or sends, whichever came last: it is not used where a group has seen both."""
    groups = {"0": range(3)}
    waits = [call(7, state="scheduled")]
    dumps = {
        0: document(waits, groups, {0: (7, 6)}, first=90),
        1: document([*waits, call(7, "nccl:send 1->2", p2p=400)], groups, {0: (400, 400)}, first=90),
        2: document([], groups, {0: (400, 400)}),
    }
    [verdict] = roots(dumps)
    assert (verdict.kind, verdict.doubt) == (VerdictKind.UNKNOWN, Doubt.RECORDS_LOST)


def test_group_whose_members_are_not_recorded() -> None:
    """On gloo a rank that never called anything in a group is not known to be in it: nothing is claimed of the rest."""
    open_one = document([call(1, group="5", description="pair", state="scheduled", retired=False)], {}, {0: (1, 0)})
    [verdict] = roots({0: gloo(open_one), 1: gloo(open_one)})
    assert (verdict.kind, verdict.doubt) == (VerdictKind.UNKNOWN, Doubt.MEMBERS)


def test_timed_out_on_nccl() -> None:
    """NCCL's recorder retires what has timed out: that is not an end."""
    dumps = late_rank()
    for dump in dumps.values():
        if dump["entries"][-1]["state"] == "scheduled":
            dump["entries"][-1]["retired"] = True
    assert verdicts(dumps) == [(VerdictKind.ABSENT, (2,))]


def torchcomms(dump: Document) -> Document:
    """The same, as torchcomms writes it: one count for all groups, no counters, an end is shown by retiring alone."""
    entries = [
        {**one, "collective_seq_id": one["record_id"], "time_discovered_completed_ns": None}
        | {"retired": one["state"] == "completed", "state": "scheduled"}
        for one in dump["entries"]
    ]
    config = {"0": {**dump["pg_config"]["0"], "ranks": "0,1,2,3"}}
    return {**dump, "pg_config": config, "pg_status": {}, "entries": entries}


def test_torchcomms() -> None:
    """Torchcomms numbers the calls of all groups together: they are counted anew for each group."""
    assert verdicts({rank: torchcomms(dump) for rank, dump in late_rank().items()}) == [(VerdictKind.ABSENT, (2,))]


def test_moment() -> None:
    """The moment is when the first timeout of a waiting operation ran out, or the newest time if that is later."""
    dumps = late_rank(steps=1)
    found = moment(dumps)
    assert (found.kind, found.world.taken_ns) == (MomentKind.FIRST_TIMEOUT, START_NS + 602 * SECOND + 1)
    dumps[2]["entries"].append({**call(9, group="7", pg_id=7, at_s=700), "record_id": 1})
    found = moment(dumps)
    assert (found.kind, found.world.taken_ns) == (MomentKind.NEWEST_TIME, START_NS + 700 * SECOND + 1_000_001)


def test_moment_of_our_own_dumps() -> None:
    """Dumps that state up to when they reach show that moment, unless one of them does not state it."""
    dumps = {rank: {**dump, "until_ns": START_NS + (90 + rank) * SECOND} for rank, dump in late_rank(steps=1).items()}
    found = moment(dumps)
    assert (found.kind, found.world.taken_ns) == (MomentKind.DUMPS, START_NS + 93 * SECOND + 1)
    del dumps[0]["until_ns"]
    assert moment(dumps).kind is MomentKind.FIRST_TIMEOUT


def test_nothing_is_open() -> None:
    """A job in which nothing was open has no verdict."""
    assert verdicts({rank: document([call(1)], {"0": range(2)}) for rank in range(2)}) == []


def test_with_timing() -> None:
    """Where the recorder knows what has started, an operation that has not is queued, and its rank waits elsewhere."""
    started: dict[str, Any] = {"time_discovered_started_ns": START_NS, "state": "started"}
    groups = {"0": range(2), "1": range(2)}
    waits = call(1, **started)
    queued = call(1, group="1", pg_id=1, state="scheduled", description="")
    state = {0: (1, 0), 1: (1, 0)}
    dumps = {0: document([waits, queued], groups, state), 1: document([queued], groups, {1: (1, 0)})}
    found = moment(dumps).world.ranks
    assert [one.record.is_queued for one in found[0].open] == [False, True]
    assert verdicts(dumps) == [(VerdictKind.ABSENT, (1,))]


def test_histories() -> None:
    """All calls of all ranks, with ids that their peers share, times since the epoch, and what is missing."""
    dumps = late_rank(3, steps=20)
    dumps[0] = {**dumps[0], "entries": dumps[0]["entries"][5:]}
    decoded = [decode(json.dumps(dump).encode(), rank, "").dump for rank, dump in dumps.items()]
    groups = RecordedGroups([condense(dump).dump for dump in decoded])
    histories = [history_of(dump, groups) for dump in decoded]
    assert [(one.rank, one.world_size, len(one.operations), one.lost) for one in histories] == [
        (0, 3, 16, 5), (1, 3, 21, 0), (2, 3, 20, 0),
    ]  # fmt: skip
    first, second = histories[0].operations[0], histories[1].operations[5]
    assert first.operation_id == second.operation_id
    assert (first.name, first.record.message_bytes, first.record.how) == ("all_reduce", 16, How.WATCHDOG)
    assert first.record.entered_ns == START_NS + 6 * SECOND
    assert histories[0].operations[-1].record.is_open


@pytest.mark.parametrize(
    ("inputs", "outputs", "splits"),
    [
        ([[4, 8]], [[6, 8]], Splits((), 0, 192)),
        ([[4, 8]], [[4, 8]], None),
        ([[1, 8], [3, 8]], [[2, 8], [2, 8]], Splits((32, 96), 96, 128)),
        ([[2, 8], [2, 8]], [[4], [28]], None),
        ([], [], None),
    ],
)
def test_uneven_exchanges(inputs: list[list[int]], outputs: list[list[int]], splits: Splits | None) -> None:
    """What an exchange receives is in its dump; its parts are only if it is one of lists of tensors."""
    dtypes: dict[str, Any] = {"input_dtypes": ["Float"] * len(inputs), "output_dtypes": ["Float"] * len(outputs)}
    entry = call(1, "nccl:all_to_all", input_sizes=inputs, output_sizes=outputs, **dtypes)
    dump = decode(json.dumps(document([entry], {"0": range(2)})).encode(), 0, "").dump
    [operation] = history_of(dump, RecordedGroups([condense(dump).dump])).operations
    assert operation.record.splits == splits
    assert bool(operation.record.flags & Flag.UNEVEN) == (splits is not None)
