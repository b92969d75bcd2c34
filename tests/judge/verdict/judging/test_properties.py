"""The verdict on random worlds: the late rank is named, and no other."""

from hypothesis import strategies as st

from otel_torchdist.judge.verdict.verdict import Doubt
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from tests.support.examples import few_and_many
from tests.support.worlds.fake_world import FakeWorld, group_of
from tests.support.worlds.judging import verdicts
from tests.support.worlds.schedule import Meeting, play


@st.composite
def schedules(draw: st.DrawFn, size: int) -> list[Meeting]:
    """Generate operations of random groups in one order; some are in flight, and some waits are unrecorded."""
    members = st.sets(st.integers(0, size - 1), min_size=2).map(sorted)
    groups = draw(st.lists(members, min_size=1, max_size=5))
    views = [group_of(*ranks, nth=nth) for nth, ranks in enumerate(groups)]
    meeting = st.builds(Meeting, st.sampled_from(views), st.booleans(), st.booleans())
    return draw(st.lists(meeting, min_size=1, max_size=25))


SIZE = 6


@few_and_many(30, 300, schedules(SIZE), st.integers(0, SIZE - 1), st.data())
def test_one_late_rank_is_named_and_no_other(schedule: list[Meeting], late: int, data: st.DataObject) -> None:
    """Every stall of other ranks leads to the late rank alone.

    If other ranks have operations in flight and no recorded wait, a circle may stay undecided. Then its ranks are
    listed, and none is blamed.
    """
    blocking = [Meeting(meeting.group) for meeting in schedule]
    parts = sum(late in meeting.group.members for meeting in schedule)
    stop = data.draw(st.integers(0, parts), label="stop")
    for operations in (blocking, schedule):
        world = FakeWorld(SIZE)
        now_s = play(world, operations, {late: stop})
        for verdict in verdicts(world.snapshot(now_s + 60)).values():
            assert verdict is not None
            if operations is schedule and verdict.doubt is Doubt.CYCLE:
                assert late in verdict.ranks
                continue
            assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, (late,))


@few_and_many(30, 100, schedules(SIZE))
def test_healthy_worlds_are_silent(schedule: list[Meeting]) -> None:
    """If no rank is late, there is no verdict, even with operations in flight."""
    world = FakeWorld(SIZE)
    now_s = play(world, schedule, {})
    assert verdicts(world.snapshot(now_s + 60)) == {}
