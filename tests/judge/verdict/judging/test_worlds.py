"""Verdicts and their sentences: each row is a claim, a world, and the verdict on it."""

from __future__ import annotations

import pytest

from otel_torchdist.judge.verdict.verdict import Doubt
from otel_torchdist.model.kinds import How, TapeState
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from tests.judge.verdict.judging.named_worlds import (
    BACKGROUND,
    CALLED,
    DEFAULT_PAIR,
    FIRST,
    IS_IN,
    LAST,
    LINE,
    OP,
    PAIR,
    RAISED,
    SECOND_PAIR,
    THREE,
    THREE_WAIT,
    THREE_WAIT_AT,
    in_pairs,
)
from tests.support.worlds.fake_world import group_of
from tests.support.worlds.steps import (
    Judged,
    calls,
    creates,
    dies,
    has,
    late,
    leaves,
    meets,
    receives,
)

ABSENT = {
    "A rank that has not entered is named, with the age, the ranks that wait, and where it was last": Judged(
        late(2),
        VerdictKind.ABSENT,
        (2,),
        now_s=20.4,
        says=f"rank 2 has not entered {OP} for 10.4 s; {LAST}; {THREE_WAIT}",
    ),
    "Ranks that are missing together are named as a range": Judged(
        late(1, 2),
        VerdictKind.ABSENT,
        (1, 2),
        says=(
            f"ranks 1-2 have not entered {OP} for 15.0 s; rank 1 was last in all_reduce, {CALLED}; 2 of 4 "
            f"ranks wait in train at train.py:42. Rank 2 was last in all_reduce, {CALLED}"
        ),
    ),
    "A rank that is missing because it waits elsewhere is not blamed; that for which it waits in the end is": Judged(
        (calls(0, PAIR, 1.0), calls(1, group_of(1, 2), 2.0), calls(2, group_of(2, 3, description="pair"), 3.0)),
        VerdictKind.ABSENT,
        (3,),
        says=(
            "rank 3 has not entered all_reduce (sequence 1, pair) for 22.0 s; 1 of 2 ranks waits in train at "
            "train.py:42"
        ),
    ),
    "A missing rank that has been in another operation only for a moment does not wait there": Judged(
        (*late(2), calls(2, group_of(2, 3), 19.9)), VerdictKind.ABSENT, (2,), now_s=20.0, of=0
    ),
    "A block outweighs an older operation in flight": Judged(
        (
            calls(1, group_of(1, 3), 1.0, blocking=False),
            calls(1, group_of(1, 2), 2.0),
            calls(0, PAIR, 3.0),
        ),
        VerdictKind.ABSENT,
        (2,),
        of=0,
    ),
    "A member that has finished will not enter: it is absent, and said to have ended": Judged(
        (*late(2), dies(2, 15.0, TapeState.FINISHED)),
        VerdictKind.ABSENT,
        (2,),
        says=f"rank 2 has finished before {OP}, which has been blocked for 15.0 s; {LAST}; {THREE_WAIT}",
    ),
    "A rank that is missing from the creation of a group is absent there": Judged(
        (creates(0, group_of(0, 1, description="mesh_tp")),),
        VerdictKind.RENDEZVOUS,
        (1,),
        size=2,
        says=(
            "rank 1 has not joined new_group (mesh_tp) for 15.0 s; 1 of 2 ranks waits. The group is created "
            "in train at train.py:42"
        ),
    ),
    "Python threads that have not run for long are said not to have run": Judged(
        (*late(2), has(2, heartbeat_age_s=12.0)),
        VerdictKind.ABSENT,
        (2,),
        says=(
            f"rank 2 has not entered {OP} for 15.0 s; {LAST}, and its Python threads have not run for 12.0 s. "
            f"{THREE_WAIT}"
        ),
    ),
}
TRANSPORT = {
    "When the last rank has only just entered, nothing is reported": Judged(
        (*late(2), calls(2, at_s=21.0)), None, now_s=30.9, of=0
    ),
    "When the last rank entered ten seconds ago, and none has left, it is the transport": Judged(
        (*late(2), calls(2, at_s=21.0)),
        VerdictKind.TRANSPORT,
        now_s=31.0,
        says=f"all 4 ranks have entered {OP}, but it has not completed after 21.0 s; {FIRST}; 4 of 4 ranks wait",
    ),
    "Members that left are named beside those that did not": Judged(
        (*late(), leaves(1, 11.0)),
        VerdictKind.TRANSPORT,
        says=(
            f"all 4 ranks have entered {OP}, but it has not completed after 15.0 s; {FIRST}; 3 of 4 ranks "
            "wait; rank 1 has left it"
        ),
    ),
    "A member that got an exception while the others wait is named": Judged(
        (*late(), leaves(1, 12.0, How.FAILED, "RuntimeError")),
        VerdictKind.TRANSPORT,
        (1,),
        says=(
            f"all 4 ranks have entered {OP}, but it has not completed after 15.0 s; {LAST}; 3 of 4 ranks "
            "wait. Rank 1 raised RuntimeError"
        ),
    ),
}
DEAD = {
    "A rank whose lock is free and whose tape is not finished is dead": Judged(
        (*late(2), dies(2, 15.0)),
        VerdictKind.DEAD,
        (2,),
        says=(
            f"rank 2 is dead, and {OP} has been blocked for 15.0 s; {LAST}; {THREE_WAIT}. The process of rank 2 is gone"
        ),
    ),
    "A rank that raised is dead, and said to have raised, where and with which message": Judged(
        (*late(2), has(2, raised=RAISED), dies(2, 15.0, TapeState.FAILED, "ValueError")),
        VerdictKind.DEAD,
        (2,),
        says=(
            f"rank 2 ended with ValueError, and {OP} has been blocked for 15.0 s; it raised ValueError in "
            f'step at train.py:57: "loss is nan"; {THREE_WAIT}'
        ),
    ),
    "The type of an exception is said though no more is known of it": Judged(
        (*late(2), dies(2, 15.0, TapeState.FAILED, "ValueError")),
        VerdictKind.DEAD,
        (2,),
        says=f"rank 2 ended with ValueError, and {OP} has been blocked for 15.0 s; {LAST}; {THREE_WAIT}",
    ),
    "Of several dead ranks the first is named, for launchers end the others": Judged(
        (*late(2), dies(2, 15.0), dies(0, 16.0)), VerdictKind.DEAD, (2,), now_s=17.0
    ),
}
FROZEN = {
    "A missing rank that a signal has stopped is frozen": Judged(
        (*late(2), has(2, stopped="T", stopped_since_s=19.0)),
        VerdictKind.FROZEN,
        (2,),
        now_s=20.0,
        says=f"rank 2 is frozen (stopped by a signal) and has not entered {OP} for 10.0 s; {LAST}; {THREE_WAIT_AT}",
    ),
    "A missing rank that a debugger holds is frozen": Judged(
        (*late(2), has(2, stopped="t", stopped_since_s=19.0)),
        VerdictKind.FROZEN,
        (2,),
        now_s=20.0,
        says=f"rank 2 is frozen (held by a debugger) and has not entered {OP} for 10.0 s; {LAST}; {THREE_WAIT_AT}",
    ),
    "A process that reads from a disk sleeps uninterruptibly for moments": Judged(
        (*late(2), has(2, stopped="D", stopped_since_s=20.0)), VerdictKind.ABSENT, (2,), now_s=22.9
    ),
    "After three seconds of uninterruptible sleep a process is frozen": Judged(
        (*late(2), has(2, stopped="D", stopped_since_s=20.0)),
        VerdictKind.FROZEN,
        (2,),
        now_s=23.0,
        says=(f"rank 2 is frozen (in uninterruptible sleep) and has not entered {OP} for 13.0 s; {LAST}. {THREE_WAIT}"),
    ),
    "Where all have entered, and one of them cannot run, it is not the network": Judged(
        (*late(), has(1, stopped="T")),
        VerdictKind.FROZEN,
        (1,),
        says=(
            f"rank 1 is frozen (stopped by a signal) inside {OP}, which has been blocked for 15.0 s; {IS_IN}. "
            "4 of 4 ranks wait in train at train.py:42"
        ),
    ),
    "A rank that waits for a frozen one is not blamed": Judged(
        (calls(0, PAIR, 1.0), calls(1, group_of(1, 2), 2.0), has(2, stopped="T")), VerdictKind.FROZEN, (2,), size=3
    ),
}
CIRCULAR = {
    "All ranks of a circle are listed, with their groups and lines, whichever wait is judged": Judged(
        in_pairs(),
        VerdictKind.CIRCULAR,
        (0, 1, 2),
        size=3,
        says=(
            "ranks 0-2 have waited for each other for 24.0 s: rank 0 for rank 1 in all_reduce (a) at train.py:42; "
            "rank 1 for rank 2 in all_reduce (b) at train.py:42; rank 2 for rank 0 in all_reduce (c) at train.py:42. "
            f"Rank 0 waits for rank 1 in all_reduce (sequence 1, a) {LINE}; "
            f"rank 1 waits for rank 2 in all_reduce (sequence 1, b) {LINE}; rank 2 "
            f"waits for rank 0 in all_reduce (sequence 1, c) {LINE}"
        ),
    ),
    "Two ranks that begin with different groups of the same members are a circle": Judged(
        (calls(0, PAIR, 1.0), calls(1, SECOND_PAIR, 2.0)),
        VerdictKind.CIRCULAR,
        (0, 1),
        size=2,
        says=(
            "ranks 0-1 have waited for each other for 24.0 s: rank 0 in all_reduce (a) at train.py:42; "
            "rank 1 in all_reduce (b) at train.py:42. "
            f"Rank 0 waits for rank 1 in all_reduce (sequence 1, a) {LINE}; "
            f"rank 1 waits for rank 0 in all_reduce (sequence 1, b) {LINE}"
        ),
    ),
    "Where ranks of a circle are not seen to block they may be busy: all are listed, none is blamed": Judged(
        in_pairs(may_be_busy=True),
        VerdictKind.UNKNOWN,
        (0, 1, 2),
        size=3,
        doubt=Doubt.CYCLE,
        says=(
            "ranks 0-2 have waited for each other, in all_reduce (sequence 1, c) and elsewhere, for 24.0 s; "
            f"{FIRST}. Rank 2 is in all_reduce, {CALLED}"
        ),
    ),
    "A rank with an operation in flight that does not block is absent where another waits for it": Judged(
        (calls(0, PAIR, 1.0), calls(1, SECOND_PAIR, 2.0, blocking=False)), VerdictKind.ABSENT, (1,), size=2
    ),
    "A rank whose peer waits for a third one in a collective owes no send": Judged(
        (
            receives(0, 1, THREE, 1.0),
            calls(1, group_of(1, 2, description="tp"), 1.5),
            receives(2, 0, THREE, 1.6),
        ),
        VerdictKind.CIRCULAR,
        (0, 1, 2),
        size=3,
    ),
    "Two threads of a rank make no circle, and no order is blamed": Judged(
        (
            meets(DEFAULT_PAIR, 0.1),
            calls(0, group_of(0, 1, description="saves", nth=1), 1.0, "barrier", thread=BACKGROUND),
            calls(1, DEFAULT_PAIR, 2.0),
        ),
        VerdictKind.UNKNOWN,
        (0, 1),
        size=2,
        doubt=Doubt.THREADS,
        says=(
            "barrier (sequence 1, saves) has not completed after 24.0 s; which ranks are missing is unknown; "
            "1 of 2 ranks waits. Other threads of the ranks that are missing wait elsewhere, "
            "rank 0 waits for rank 1 in barrier "
            f"(sequence 1, saves) {LINE}; rank 1 waits for rank 0 in {OP} {LINE}"
        ),
    ),
    "The same two operations from one thread of each rank are a circle": Judged(
        (
            meets(DEFAULT_PAIR, 0.1),
            calls(0, group_of(0, 1, description="saves", nth=1), 1.0, "barrier"),
            calls(1, DEFAULT_PAIR, 2.0),
        ),
        VerdictKind.CIRCULAR,
        (0, 1),
        size=2,
    ),
    "A wait of autograd's thread, for which the main thread waits, explains that its rank is absent": Judged(
        (
            meets(PAIR, 0.1),
            calls(0, PAIR, 1.0),
            calls(1, group_of(1, 2, description="shards"), 1.0, thread=BACKGROUND),
        ),
        VerdictKind.ABSENT,
        (2,),
        size=3,
        says=(
            "rank 2 has not entered all_reduce (sequence 1, shards) for 24.0 s; 1 of 2 ranks waits in train "
            "at train.py:42"
        ),
    ),
}

ROWS = ABSENT | TRANSPORT | DEAD | FROZEN | CIRCULAR


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_verdict(row: Judged) -> None:
    """Check one row: the verdict on its world."""
    row.check()
