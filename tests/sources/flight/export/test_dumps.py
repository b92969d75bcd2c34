"""Dumps made from histories: what stands in an entry, and what is left out for all ranks together."""

from __future__ import annotations

import dataclasses
import pickle
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_torchdist.model.calls import ANY_RANK, OperationView
from otel_torchdist.model.kinds import Flag, How, RecordKind
from otel_torchdist.model.operations import Splits
from otel_torchdist.sources.flight.dump import EntryState, FlightDump, FlightEntry, GroupStatus
from otel_torchdist.sources.flight.export.dumps import Exported, dumps_of
from otel_torchdist.sources.flight.export.pickles import is_marked, pickled
from otel_torchdist.sources.flight.export.selection import ExportChoice, Reason
from otel_torchdist.sources.flight.reading.decoding import decode
from tests.sources.flight.export.made import SECOND, SITE, WALL_NS, WORLD, call, group, history, message

ALL = ExportChoice()
LEFT = Counter[str]


def exported(
    *operations: list[OperationView], choice: ExportChoice = ALL, lost: dict[int, int] | None = None
) -> Exported:
    """The export of what ranks 0, 1, … have called."""
    return dumps_of([history(rank, one, (lost or {}).get(rank, 0)) for rank, one in enumerate(operations)], choice)


def sequences(found: Exported) -> list[list[int]]:
    """The sequence numbers in each dump."""
    return [[entry.sequence for entry in dump.entries] for dump in found.dumps]


def left_out(found: Exported) -> dict[Reason, LEFT]:
    """What was left out."""
    return dict(found.left_out.counts())


def only(dump: FlightDump) -> FlightEntry:
    """The only entry of a dump."""
    [entry] = dump.entries
    return entry


def test_entry() -> None:
    """An entry has all that a tape has, by the wall clock."""
    found = exported([call(3, at=5, ends=2)])
    assert only(found.dumps[0]) == FlightEntry(
        record_id=0, pg_id=0, group="0", description="default_pg", sequence=3, p2p_sequence=0, operation_number=3,
        profiling_name="gloo:all_reduce", created_ns=WALL_NS + 5 * SECOND, started_ns=None,
        completed_ns=WALL_NS + 7 * SECOND, duration_ms=None, state=EntryState.COMPLETED, retired=True,
        input_sizes=((4,),), input_dtypes=("Float",), output_sizes=((4,),), output_dtypes=("Float",),
        timeout_ms=None, is_p2p=False, thread="9", frames=(SITE,),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ends", "how", "is_last", "state", "is_end_known"),
    [
        (1, How.WAIT, True, EntryState.COMPLETED, True),
        (None, How.WAIT, True, EntryState.SCHEDULED, False),
        (1, How.UNTRACKED, True, EntryState.COMPLETED, False),
        (1, How.ABANDONED, True, EntryState.COMPLETED, False),
        (1, How.FAILED, True, EntryState.SCHEDULED, False),
        (1, How.FAILED, False, EntryState.COMPLETED, False),
    ],
)
def test_ends(ends: int | None, how: How, is_last: bool, state: EntryState, is_end_known: bool) -> None:
    """A call is open if it is on the tape, or if its rank failed in it and made no other; unknown ends have no time."""
    calls = [call(1, ends=ends, how=how), *([] if is_last else [call(2)])]
    entry = exported(calls).dumps[0].entries[0]
    found = entry.state, entry.retired, entry.completed_ns is not None
    assert found == (state, state is EntryState.COMPLETED, is_end_known)


def exchange(received: int | None, *, is_uneven: bool = True) -> OperationView:
    """A call that sends two rows of four numbers, and receives some bytes; None if that is not known."""
    made = call(1, "all_to_all_single", shapes=((2, 4),))
    splits = Splits((16, 0, 16), 16, received) if received is not None else None
    flags = Flag.UNEVEN if is_uneven else Flag(0)
    return dataclasses.replace(made, record=msgspec.structs.replace(made.record, flags=flags, splits=splits))


@pytest.mark.parametrize(
    ("last", "outputs"),
    [
        (exchange(0), [(4, 4), (2, 4), (0, 4)]),
        (exchange(None, is_uneven=False), [(4, 4), (2, 4), (2, 4)]),
        (exchange(None), [(2, 4)] * 3),
    ],
)
def test_uneven_exchanges(last: OperationView, outputs: list[tuple[int, ...]]) -> None:
    """Each rank's output is as large as it was, unless that is not known of one: analyses add up those of all ranks."""
    found = exported([exchange(64)], [exchange(32)], [last])
    assert [only(dump).input_sizes for dump in found.dumps] == [((2, 4),)] * 3
    assert [only(dump).output_sizes for dump in found.dumps] == [(one,) for one in outputs]
    assert [only(dump).output_dtypes for dump in found.dumps] == [("Float",)] * 3


def test_progress_of_groups() -> None:
    """The state of a group is how far a rank has come in it; groups that it has not used are there too."""
    other = group(0, 1, name="5", description="")
    found = exported([call(1), call(2, ends=None), call(1, of=other)], [call(1), call(2, ends=None)])
    assert [dict(dump.statuses) for dump in found.dumps] == [
        {0: GroupStatus(2, 1, 1), 1: GroupStatus(1, 1, 1)},
        {0: GroupStatus(2, 1, 1), 1: GroupStatus(-1, -1, -1)},
    ]
    assert [(one.name, one.description, one.ranks) for one in found.dumps[1].groups.values()] == [
        ("0", "default_pg", (0, 1, 2)),
        ("5", "undefined", (0, 1)),
    ]


def test_groups_of_one_name() -> None:
    """Groups that torch gave one name have different ones, which all members use."""
    again = group(0, 1, 2, nth=1)
    found = exported([call(1), call(1, of=again)], [call(1), call(1, of=again)])
    names = [[entry.group for entry in dump.entries] for dump in found.dumps]
    assert names == [["0", f"0 {again.key}"]] * 2


def test_labels_that_differ() -> None:
    """Where members call a group by different names, that of the lowest rank is used: torchfrtrace compares them."""
    views = [group(0, 1, 2, name=str(rank), description=f"of {rank}") for rank in range(2)]
    found = exported(*([call(1, of=view)] for view in views))
    assert {(only(dump).group, only(dump).description) for dump in found.dumps} == {("0", "of 0")}


def test_messages_have_groups_of_their_own() -> None:
    """What one rank sends another is a group of two, counted as on the tape; each tag is another."""
    found = exported(
        [message(0, 2, 4, by=0), message(0, 2, 1, by=0, tag=7)],
        [],
        [message(0, 2, 1, by=2, tag=7), message(2, 0, 1, by=2), message(0, 2, 4, by=2)],
    )
    entries = [(one.group, one.profiling_name, one.sequence, one.p2p_sequence) for one in found.dumps[2].entries]
    assert entries == [
        ("0 p2p 0->2 tag 7", "gloo:recv 1<-0", 1, 1),
        ("0 p2p 2->0", "gloo:send 1->0", 1, 1),
        ("0 p2p 0->2", "gloo:recv 1<-0", 4, 4),
    ]
    assert [one.profiling_name for one in found.dumps[0].entries] == ["gloo:send 0->1", "gloo:send 0->1"]
    assert all(one.is_p2p for dump in found.dumps for one in dump.entries)
    assert {one.ranks for one in found.dumps[0].groups.values()} == {(0, 2)}
    assert not found.dumps[1].groups


def test_receive_from_any_rank() -> None:
    """It names no peer, so neither it nor what may have met it is written; other messages are."""
    found = exported(
        [message(ANY_RANK, 0, by=0), message(0, 1, by=0)],
        [message(1, 0, by=1), message(0, 1, by=1), message(1, 0, by=1, tag=3)],
    )
    assert sequences(found) == [[1], [1, 1]]
    assert left_out(found) == {Reason.ANY_SOURCE: LEFT(recv=1, send=1)}


def test_what_no_recorder_knows() -> None:
    """Operations without a name there, groups whose numbers are not shared, and creations that hang are counted."""
    unaligned = group(0, 1, 2, nth=3, aligned=False)
    creation = {"name": "new_group", "kind": RecordKind.RENDEZVOUS, "shapes": (), "tensors": 0}
    found = exported(
        [call(1), call(2, "put"), call(1, of=unaligned), call(1, **creation), call(2, ends=None, **creation)]
    )
    assert sequences(found) == [[1]]
    assert left_out(found) == {
        Reason.UNKNOWN_OPERATION: LEFT(put=1),
        Reason.OPEN_CREATION: LEFT(new_group=1),
        Reason.UNALIGNED: LEFT(all_reduce=1),
    }


@pytest.mark.parametrize(
    ("configured", "device", "library", "renamed"),
    [
        ("gloo", "cpu", "gloo", {}),
        ("cpu:gloo,cuda:nccl", "cuda", "nccl", {}),
        ("cpu:gloo,cuda:nccl", "cpu", "gloo", {}),
        ("cpu:gloo,cuda:nccl", "hpu", "gloo", {}),
        ("NCCL", "cuda", "nccl", {}),
        ("nccl2", "cuda", "nccl", {"nccl2": "nccl"}),
        ("ucc", "cuda", "gloo", {"ucc": "gloo"}),
        ("", "cpu", "gloo", {"": "gloo"}),
    ],
)
def test_backends(configured: str, device: str, library: str, renamed: dict[str, str]) -> None:
    """A backend that torchfrtrace may not know gets the name of one that it does."""
    found = exported([call(1, of=group(0, 1, 2, backend=configured), device=device)])
    assert only(found.dumps[0]).profiling_name == f"{library}:all_reduce"
    assert found.renamed == renamed


def test_sizes_that_were_not_recorded() -> None:
    """If one rank's tape lacks the sizes of a call, no rank's sizes are compared."""
    found = exported([call(1), call(2)], [call(1, shapes=()), call(2)])
    first, second = found.dumps[0].entries
    assert (first.input_sizes, first.input_dtypes, first.output_sizes) == (((0,),), (), ((0,),))
    assert second.input_sizes == ((4,),)
    barrier = only(exported([call(1, "barrier", shapes=(), dtypes=(), tensors=0)]).dumps[0])
    assert (barrier.input_sizes, barrier.output_sizes) == ((), ())


def test_overwritten_heads() -> None:
    """Where a ring has lost its oldest calls, those are left out on all ranks, and records count from 0."""
    found = exported(
        [call(n) for n in range(1, 9)], [call(n) for n in range(4, 9)], [call(n) for n in range(1, 9)], lost={1: 3}
    )
    assert sequences(found) == [[4, 5, 6, 7, 8]] * 3
    assert [entry.record_id for entry in found.dumps[0].entries] == [0, 1, 2, 3, 4]
    assert left_out(found) == {Reason.OVERWRITTEN: LEFT(all_reduce=6)}


def test_gap_in_a_tape() -> None:
    """A damaged record in the middle takes away what others called there, and nothing else."""
    found = exported([call(1), call(3)], [call(1), call(2), call(3)], lost={0: 1})
    assert sequences(found) == [[1, 3], [1, 3]]


def test_rank_that_has_lost_all_of_a_group() -> None:
    """It may have been where others are through, but not where they are still waiting."""
    pair = group(1, 2, name="7")
    busy = [call(n, of=pair) for n in range(50, 55)]
    found = exported([call(1), call(2), call(3, ends=None)], busy, lost={1: 60})
    assert sequences(found) == [[3], [50, 51, 52, 53, 54]]
    assert left_out(found) == {Reason.OVERWRITTEN: LEFT(all_reduce=2)}


def test_kinds_keep_what_others_called() -> None:
    """A position is written on all ranks if one of them called a wanted operation there."""
    found = exported(
        [call(1, "broadcast"), call(2), call(3, "barrier"), message(0, 1, by=0)],
        [call(1, "broadcast"), call(2, "barrier"), call(3, "barrier"), message(0, 1, by=1)],
        choice=ExportChoice(("all_red*", "send")),
    )
    assert [[one.profiling_name for one in dump.entries] for dump in found.dumps] == [
        ["gloo:all_reduce", "gloo:send 0->1"],
        ["gloo:barrier", "gloo:recv 1<-0"],
    ]


def test_newest_calls() -> None:
    """The newest calls of each rank are written, as far as all members have them among these, and what is open."""
    first_open = call(1, ends=None, of=group(0, 1, name="5"))
    ahead = [first_open, *(call(n) for n in range(1, 7))]
    behind = [first_open, *(call(n) for n in range(1, 5))]
    found = exported(ahead, behind, choice=ExportChoice(newest=3))
    assert [[(one.group, one.sequence) for one in dump.entries] for dump in found.dumps] == [
        [("5", 1), ("0", 4), ("0", 5), ("0", 6)],
        [("5", 1), ("0", 4)],
    ]
    assert left_out(found) == {}


def test_calls_of_the_last_seconds() -> None:
    """The time counts back from the newest call of any rank, by the wall clock."""
    one, other = history(0, [call(n, at=n) for n in range(1, 10)]), history(1, [call(n, at=n) for n in range(1, 5)])
    other = dataclasses.replace(other, wall_offset_ns=other.wall_offset_ns + 3 * SECOND)
    found = dumps_of([one, other], ExportChoice(within_ns=4 * SECOND))
    assert sequences(found) == [[5, 6, 7, 8, 9], []]
    assert sequences(dumps_of([one, other], ExportChoice(within_ns=6 * SECOND))) == [[3, 4, 5, 6, 7, 8, 9], [3, 4]]
    assert sequences(exported([], [], choice=ExportChoice(newest=5))) == [[], []], "ranks that have called nothing"


def test_pickle() -> None:
    """Our own reader finds in the file what was written, and so does anything that unpickles plain data."""
    dump = dumps_of([history(2, [call(1), message(2, 0, by=2), call(2, ends=None)], until=9)], ALL).dumps[0]
    content = pickled(dump)
    assert decode(content, 2, "").dump == dump
    assert decode(content, 2, "").bad_parts == 0
    assert dump.until_ns == WALL_NS + 9 * SECOND
    assert content[:2] == b"\x80\x02"
    plain = pickle.loads(content)
    assert plain["version"] == "2.10"
    assert plain["pg_config"]["0"] == {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}
    assert plain["entries"][0]["input_sizes"] == [[4]]


def test_mark() -> None:
    """A file that we have written is distinguished from one of PyTorch."""
    dump = exported([call(1)]).dumps[0]
    assert is_marked(pickled(dump))
    theirs = {key: value for key, value in pickle.loads(pickled(dump)).items() if key != "exported_by"}
    assert not is_marked(pickle.dumps(theirs, protocol=2))


def _without_oldest(calls: list[OperationView], lost: int) -> list[OperationView]:
    """What is on a tape whose ring has lost calls; one that is open is kept beside the ring."""
    return [one for nth, one in enumerate(calls) if nth >= lost or one.record.completed_ns is None]


@given(st.data())
def test_no_rank_is_ever_missing_by_our_doing(data: st.DataObject) -> None:
    """However much each ring of a sound job has lost and whatever is chosen, each written call is there on all members.

    One rank may have stopped early: then others have calls that it has not, but only where it really made none.
    """
    groups = [WORLD, group(0, 1, name="1"), group(1, 2, name="2")]
    turns = data.draw(st.lists(st.sampled_from(groups), max_size=30))
    late, stops = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 30))
    calls: list[list[OperationView]] = [[], [], []]
    counts, made = Counter[str](), set[tuple[int, str, int]]()
    for turn, one in enumerate(turns):
        counts[one.key] += 1
        for rank in sorted(one.members):
            if rank == late and turn >= stops:
                continue
            is_open = turn >= stops and late in one.members
            calls[rank].append(call(counts[one.key], of=one, at=turn, ends=None if is_open else 1))
            made.add((rank, one.key, counts[one.key]))
    losses = {rank: data.draw(st.integers(0, len(mine))) for rank, mine in enumerate(calls)}
    choice = ExportChoice(newest=data.draw(st.none() | st.integers(1, 12)))
    taped = [_without_oldest(mine, losses[rank]) for rank, mine in enumerate(calls)]
    found = exported(*taped, choice=choice, lost=losses)
    keys = {one.name.name: one for one in groups}
    written = {(dump.rank, keys[entry.group].key, entry.sequence) for dump in found.dumps for entry in dump.entries}
    assert written <= made
    for rank, key, sequence in made - written:
        others = {other for other, its_key, its in written if (its_key, its) == (key, sequence)}
        assert not others, f"rank {rank} seems to be missing at {sequence}"
