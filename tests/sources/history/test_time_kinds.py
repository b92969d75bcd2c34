"""Where the time of the thread that trains goes, whatever activities are nested in others or run beside it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from otel_torchdist.model.activity_kinds import TimeKind
from otel_torchdist.model.history import Activity, TimeSpent, time_kind_of
from otel_torchdist.model.kinds import ActivityKind, CallMode, How
from otel_torchdist.model.remote_calls import RemoteCall

LIMIT = 40


def activity(kind: ActivityKind, begin: int, end: int | None, thread: int = 1) -> Activity:
    """An activity between two times."""
    return Activity(1, kind, begin, 0, 0, thread, end, How.CALL)


def spent_by(*activities: Activity) -> TimeSpent:
    """What a rank with these activities was busy with."""
    return TimeSpent(activities)


@st.composite
def nested(draw: st.DrawFn, begin: int = 0, end: int = LIMIT) -> list[Activity]:
    """Activities of one thread: each lies within another one, or beside it."""
    found: list[Activity] = []
    kinds = st.sampled_from((ActivityKind.DATA_WAIT, ActivityKind.BACKWARD, ActivityKind.TORCH_SAVE))
    while begin < end - 1 and draw(st.booleans()):
        first = draw(st.integers(begin, end - 1))
        last = draw(st.integers(first + 1, end))
        found.append(activity(draw(kinds), first, last))
        if last - first > 2:
            found += draw(nested(first, last))
        begin = last
    return found


@given(nested(), st.integers(0, LIMIT), st.integers(0, LIMIT), st.integers(0, 1000))
def test_each_moment_counts_once(activities: list[Activity], first: int, last: int, offset: int) -> None:
    """Between any two times each moment is of the innermost activity, or computing, also on another clock."""
    first, last = sorted((first, last))
    if not any(one.kind is not ActivityKind.TORCH_SAVE for one in activities):
        # It shows which thread trains.
        activities = [*activities, activity(ActivityKind.BACKWARD, LIMIT + 1, LIMIT + 2)]
    expected = dict.fromkeys(TimeKind, 0)
    for moment in range(first, last):
        at = [one for one in activities if one.entered_ns <= moment < (one.completed_ns or 0)]
        # Of equally long ones the one that was recorded last lies within the other.
        inner = max(reversed(at), key=lambda one: (one.entered_ns, -(one.completed_ns or 0)), default=None)
        kind = time_kind_of(inner) if inner is not None else TimeKind.COMPUTING
        assert kind is not None
        expected[kind] += 1
    spent = spent_by(*activities)
    spent.shift(lambda _: offset)
    found = spent.between(first + offset, last + offset)
    assert {kind: found.get(kind, 0) for kind in TimeKind} == expected


def test_other_threads() -> None:
    """A checkpoint that a thread in the background writes takes no time of the one that trains."""
    spent = spent_by(
        activity(ActivityKind.BACKWARD, 0, 10),
        activity(ActivityKind.CHECKPOINT_SAVE, 5, 30, thread=2),
        activity(ActivityKind.CHECKPOINT_ASYNC_SAVE, 20, 25),
        activity(ActivityKind.DATA_WAIT, 30, None),
    )
    found = spent.between(0, 40)
    assert found == {TimeKind.BACKWARD: 10, TimeKind.CHECKPOINT: 5, TimeKind.COMPUTING: 25}


def test_remote_calls() -> None:
    """A thread waits for the results of synchronous calls only."""
    kinds = {
        mode: time_kind_of(Activity(1, ActivityKind.RPC_CLIENT, 0, 0, 0, 1, 5, How.CALL, call=RemoteCall(mode=mode)))
        for mode in CallMode
    }
    assert kinds == {
        CallMode.UNKNOWN: None,
        CallMode.SYNC: TimeKind.REMOTE_CALL,
        CallMode.ASYNC: None,
        CallMode.REMOTE: None,
    }


def test_nothing_is_recorded() -> None:
    """Without activities all time is computing."""
    assert spent_by().between(3, 10) == {TimeKind.COMPUTING: 7}
