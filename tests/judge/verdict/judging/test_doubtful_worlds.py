"""Verdicts in doubtful cases, and on waits for a device, a message or a group's creation."""

from __future__ import annotations

import pytest

from otel_torchdist.judge.verdict.verdict import Doubt
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from tests.judge.verdict.judging.named_worlds import (
    CALLED,
    CREATED,
    DEFAULT_PAIR,
    FIRST,
    IS_IN,
    LAST,
    LINE,
    MESH,
    OP,
    PAIR,
    SECOND_PAIR,
    THREE,
    UNALIGNED,
    named,
    on_device,
)
from tests.support.worlds.fake_world import group_of
from tests.support.worlds.steps import (
    Judged,
    calls,
    creates,
    dies,
    late,
    leaves,
    lost,
    lost_in,
    meets,
    receives,
)

DOUBTFUL = {
    "Where all local ranks have entered and the others do not report, no rank is named": Judged(
        late(2, 3),
        VerdictKind.UNKNOWN,
        only=(0, 1),
        doubt=Doubt.SILENT,
        says=(
            f"{OP} has not completed after 15.0 s, although all ranks that report have entered it; {FIRST}; 2 "
            "of 4 ranks wait. 2 of 4 ranks report"
        ),
    ),
    "That a local rank has not entered is certain, whatever other nodes do": Judged(
        late(1, 2),
        VerdictKind.ABSENT,
        (1,),
        only=(0, 1),
        says=(
            f"rank 1 has not entered {OP} for 15.0 s; {LAST}; 1 of 4 ranks waits in train at train.py:42. 2 "
            "of 4 ranks report"
        ),
    ),
    "A group that was in use when first seen has counts of its own on each rank": Judged(
        (calls(0, UNALIGNED),),
        VerdictKind.UNKNOWN,
        size=2,
        doubt=Doubt.UNALIGNED,
        says=(
            "all_reduce (sequence 1, group (0, 1)) has not completed after 15.0 s; which ranks are missing "
            f"is unknown; {FIRST}; 1 of 2 ranks waits. Its sequence was not counted from the group's first operation"
        ),
    ),
    "The missing rank may be the one that was instrumented late": Judged(
        (
            calls(1, UNALIGNED, 0.5),
            leaves(1, 0.6),
            calls(0, group_of(0, 1), 0.5),
            leaves(0, 0.6),
            calls(0, group_of(0, 1)),
        ),
        VerdictKind.UNKNOWN,
        size=2,
    ),
    "A rank whose records were overwritten unread may have entered": Judged(
        (*late(2), lost(2)),
        VerdictKind.UNKNOWN,
        doubt=Doubt.RECORDS_LOST,
        says=(
            f"{OP} has not completed after 15.0 s; which ranks are missing is unknown; {FIRST}; 3 of 4 ranks wait. "
            "Records of it were overwritten before they were read"
        ),
    ),
    "Whether an operation completed whose records were lost is not known": Judged(
        (*late(), lost_in(2)),
        VerdictKind.UNKNOWN,
        doubt=Doubt.RECORDS_LOST,
    ),
}
DEVICE = {
    "A device that has the operation in its queue holds up those that are in it": Judged(
        (on_device(0, begun_s=1.0), on_device(2, begun_s=1.0), on_device(1)),
        VerdictKind.DEVICE,
        (1,),
        size=3,
        says=(
            "rank 1 has enqueued all_reduce (sequence 1, default_pg), but its device has not reached it for "
            f"24.0 s; {IS_IN}; 2 of 3 ranks wait"
        ),
    ),
    "Several such devices are named together": Judged(
        (on_device(0, begun_s=1.0), on_device(1), on_device(2)),
        VerdictKind.DEVICE,
        (1, 2),
        size=3,
        says=(
            "ranks 1-2 have enqueued all_reduce (sequence 1, default_pg), but their devices have not reached "
            f"it for 24.0 s; rank 1 is in all_reduce, {CALLED}; 1 of 3 ranks waits. Rank 2 is in all_reduce, "
            f"{CALLED}"
        ),
    ),
    "A rank that has not even enqueued it is named rather than such a device": Judged(
        (on_device(0, begun_s=1.0), on_device(1)), VerdictKind.ABSENT, (2,), size=3
    ),
    "A device that itself waits for another group's operation is not blamed": Judged(
        (
            on_device(0, PAIR, begun_s=1.0),
            on_device(1, group_of(1, 2, description="mesh_tp"), begun_s=1.0),
            on_device(1, PAIR),
        ),
        VerdictKind.ABSENT,
        (2,),
        size=3,
    ),
    "An operation in which the last device has been for the threshold is stuck itself": Judged(
        tuple(on_device(rank, begun_s=1.0) for rank in range(3)), VerdictKind.TRANSPORT, size=3
    ),
    "An operation that the last device has only just reached is not stuck yet": Judged(
        tuple(on_device(rank, begun_s=24.0 if rank == 2 else 1.0) for rank in range(3)), None, size=3, of=0
    ),
}
UNMATCHED = {
    f"A stage that owes a send is named, whichever rank has waited longest: {since}": Judged(
        (receives(0, 1, THREE, since[0]), receives(1, 2, THREE, since[1]), calls(2, THREE, since[2])),
        VerdictKind.UNMATCHED,
        (2,),
        size=3,
    )
    for since in ((1.0, 1.5, 1.6), (1.5, 1.0, 1.6), (1.6, 1.5, 1.0))
} | {
    "The first stage that owes a send is named, not those that wait behind": Judged(
        (receives(2, 1, THREE, 1.0), receives(1, 0, THREE, 1.5), calls(0, THREE, 1.6)),
        VerdictKind.UNMATCHED,
        (0,),
        size=3,
    ),
}
CREATIONS = {
    "A rank in the next collective has left out the creation of a group: it is named, with the line": Judged(
        (meets(THREE, 0.5), creates((0, 1), MESH, 1.0), calls(2, THREE, 0.9)),
        VerdictKind.MISMATCHED,
        (2,),
        size=3,
        says=(
            f"rank 2 is in all_reduce {LINE}, where ranks 0-1 are in new_group (mesh) {LINE}; 2 of 3 ranks "
            f"wait. This has blocked new_group (mesh) for 24.0 s; {CREATED}"
        ),
    ),
    "A rank that creates a group alone is named": Judged(
        (creates(0, group_of(0, 1, 2, 3, nth=1, description="mesh"), 1.0), calls((1, 2, 3), at_s=1.0)),
        VerdictKind.MISMATCHED,
        (0,),
        says=(
            f"rank 0 is in new_group (mesh) {LINE}, where ranks 1-3 are in all_reduce {LINE}; 3 of 4 ranks "
            "wait. This has blocked all_reduce (sequence 1, default_pg) for 24.0 s"
        ),
    ),
    "Ranks that need not create the group, and wait with the one that left it out, do not count": Judged(
        (
            creates((0, 1, 3), group_of(0, 1, 2, 3, description="half"), 1.0),
            calls((2, 4, 5, 6, 7), group_of(*range(8), description="default_pg"), 1.0),
        ),
        VerdictKind.MISMATCHED,
        (2,),
        size=8,
    ),
    "A rank that left out the first of two creations is named, with the group that it creates": Judged(
        (creates((0, 1), MESH, 1.0), creates(2, group_of(1, 2, description="pair"), 1.0)),
        VerdictKind.MISMATCHED,
        (2,),
        size=3,
        says=(
            f"rank 2 is in new_group (pair) {LINE}, where ranks 0-1 are in new_group (mesh) {LINE}; 2 of 3 "
            f"ranks wait. This has blocked new_group (mesh) for 24.0 s; {CREATED}"
        ),
    ),
    "A rank that left out a group without itself as a member creates all later ones under another number": Judged(
        (creates((0, 1), named(THREE, "2"), 1.0), creates(2, named(THREE, "1"), 1.0)),
        VerdictKind.MISMATCHED,
        (2,),
        size=3,
        says=(
            "rank 2 has group name 1 where ranks 0-1 have 2 in new_group (default_pg), and the operation has "
            f"been blocked for 24.0 s; it is in new_group, {CALLED}; 3 of 3 ranks wait. The group is created "
            "in train at train.py:42"
        ),
    ),
    "A rank that has ended was in the call that does not match, and is in it no more": Judged(
        (*late(2), calls(2, name="barrier"), dies(2, 11.0)),
        VerdictKind.MISMATCHED,
        (2,),
        says=(
            f"rank 2 was in barrier {LINE}, where ranks 0-1,3 are in all_reduce {LINE}; 3 of 4 ranks wait. "
            f"This has blocked {OP} for 15.0 s; the process of rank 2 is gone"
        ),
    ),
    "Calls without a line, which come from C++, are named by their operations": Judged(
        (meets(), calls((0, 1, 3), line=None), calls(2, name="barrier", line=None)),
        VerdictKind.MISMATCHED,
        (2,),
        says=(
            f"rank 2 has entered barrier where ranks 0-1,3 have entered {OP}, and the operation has been "
            "blocked for 15.0 s; it is in barrier; 4 of 4 ranks wait"
        ),
    ),
    "With one against one it is unknown which is right": Judged(
        (creates(0, SECOND_PAIR, 1.0), calls(1, DEFAULT_PAIR, 1.0)),
        VerdictKind.MISMATCHED,
        (0, 1),
        size=2,
        says=(
            f"ranks are in different calls: rank 0 is in new_group (b) {LINE}, rank 1 is in all_reduce "
            f"{LINE}; 1 of 2 ranks waits. This has blocked new_group (b) for 24.0 s; {CREATED}"
        ),
    ),
}

ROWS = DOUBTFUL | DEVICE | UNMATCHED | CREATIONS


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_verdict(row: Judged) -> None:
    """Check one row: the verdict on its world."""
    row.check()
