"""The detector with peer agents: it follows another agent or judges for all, and tells when to ask the peers."""

from __future__ import annotations

import dataclasses

from otel_torchdist.judge.stall.events import Leads, MarkerDue, Undecided
from otel_torchdist.judge.stall.reporting.spans import marker_span
from otel_torchdist.judge.stall.watch import CHECK_S, HURRIED_CHECK_S
from otel_torchdist.judge.verdict.wording.sentence import sentence
from otel_torchdist.telemetry import semconv
from tests.support.worlds.detectors import EVERYBODY, LOCAL, Accompanied, a_ruling, follows, stalled, with_others
from tests.support.worlds.fake_world import FakeWorld, group_of

# --- another agent judges -----------------------------------------------------------------------------------------


def test_follower_gives_no_verdict() -> None:
    """While another agent judges and reports nothing, a follower neither reports nor asks for stacks."""
    watching = Accompanied(stalled()[0], follows(None)).until(60.0)
    assert watching.reported == []
    assert watching.peer_agents.published == []


def test_follower_marks_with_the_wording_of_the_leader() -> None:
    """Markers come at doubling ages, as usual, and each carries the other agent's verdict at that time."""
    watching = Accompanied(stalled()[0], follows(a_ruling(1))).until(20.0)
    watching.peer_agents.role = follows(a_ruling(2))
    watching.until(60.0)
    assert {type(event) for _, event in watching.events} == {MarkerDue}
    for rank in (0, 1, 3):
        assert [marker.nth for marker in watching.markers(rank)] == [1, 2, 3]
        assert [marker.ruling.epoch for marker in watching.markers(rank)] == [1, 2, 2]
    assert watching.markers(2) == []


def test_marker_of_a_follower() -> None:
    """A marker has the judging agent's sentence and a link to its root, and says if the cause is elsewhere."""
    world, _ = stalled()
    pair = group_of(2, 3, nth=1)
    world.ranks[2].enter(pair, 5.0)
    ruling = a_ruling(3)
    watching = Accompanied(world, follows(ruling)).until(16.0)
    here, elsewhere = (marker_span(watching.markers(rank)[0], None) for rank in (0, 2))
    assert here.error == ruling.text
    assert elsewhere.error is not None
    assert elsewhere.error.endswith("; the cause is elsewhere: rank 2 sleeps")
    for span in (here, elsewhere):
        assert ruling.incident.root(3) in span.links
        assert span.attributes[semconv.VERDICT] == "absent"
        age_s = span.attributes[semconv.STALL_AGE]
        assert isinstance(age_s, float) and 10 <= age_s <= 10 + CHECK_S


def test_checks_are_hurried_while_the_leader_is() -> None:
    """An agent that is asked at short intervals polls as often, so that its answers are current."""
    watching = Accompanied(stalled()[0], follows(None, is_hurried=True))
    watching.poll()
    assert watching.detector.next_check_s == HURRIED_CHECK_S
    watching.peer_agents.role = follows(None)
    watching.poll()
    assert watching.detector.next_check_s == CHECK_S


def test_undecided_agent_reports_nothing_and_checks_again_soon() -> None:
    """Until the peers have answered, there is neither verdict nor marker. Then the verdict is given in time."""
    watching = Accompanied(stalled()[0], lambda world: Undecided()).until(15.5)
    assert watching.reported == []
    assert watching.detector.next_check_s == HURRIED_CHECK_S
    assert watching.peer_agents.published == []
    watching.peer_agents.role = Leads
    watching.until(17.0)
    ((given_s, given),) = watching.verdicts
    assert given_s <= 16.7
    assert given.verdict.ranks == (2,)


# --- when the others are asked ------------------------------------------------------------------------------------


def suspicion_times(watching: Accompanied) -> list[float]:
    """Return the times at which the detector suspected a stall, with ten polls per second."""
    times: list[float] = []
    while watching.now_s < 16.0:
        watching.now_s = round(watching.now_s + 0.1, 1)
        watching.poll()
        if watching.peer_agents.suspects_stall[-1]:
            times.append(watching.now_s)
    return times


def test_stall_is_suspected_before_the_threshold() -> None:
    """The peers are asked from one second before a wait becomes a stall."""
    times = suspicion_times(Accompanied(stalled()[0], follows(None)))
    assert times[0] == 14.0
    assert len(times) == 21


def test_stall_is_suspected_where_a_rank_has_died() -> None:
    """A dead rank makes its agent suspect a stall immediately. A rank that ended cleanly does not."""
    world = FakeWorld(2)
    watching = Accompanied(world, follows(None))
    world.ranks[0].die(1.0)
    assert suspicion_times(watching)[0] == 0.1
    healthy = Accompanied(FakeWorld(2), follows(None))
    assert suspicion_times(healthy) == []


def test_stall_is_suspected_while_an_incident_is_open() -> None:
    """The peers are asked during an incident, even if no rank of this node waits in it."""
    world, _ = stalled(late=0)
    watching = Accompanied(world, with_others(world), only=(0,)).until(20.0)
    assert watching.verdicts[0][1].verdict.ranks == (0,)
    assert watching.peer_agents.suspects_stall[0] is False
    assert watching.peer_agents.suspects_stall[-1] is True


# --- this agent judges for all ------------------------------------------------------------------------------------


def test_leader_publishes_its_ruling() -> None:
    """The peers get each ruling: none at first, one per epoch of an incident, and none when it is over."""
    world, numbers = stalled()
    watching = Accompanied(world, with_others(world), only=LOCAL).until(30.0)
    world.ranks[2].end(world.ranks[2].enter(EVERYBODY, 30.0), 30.1)
    for rank, number in numbers.items():
        world.ranks[rank].end(number, 30.1)
    watching.until(32.0)
    published = watching.peer_agents.published
    assert published[0] is None and published[-1] is None
    rulings = list(dict.fromkeys(ruling.epoch for ruling in published if ruling is not None))
    assert rulings == [1, 2]
    first = next(ruling for ruling in published if ruling is not None)
    (_, given), *_ = watching.verdicts
    age_s = (given.world.taken_ns - given.verdict.since_ns) / 1e9
    assert first.text == sentence(given.verdict, age_s)
    assert (first.incident, first.operation_id) == (given.incident, given.verdict.operation_id)
    assert first.attributes[semconv.VERDICT] == "absent"


def test_markers_of_other_nodes_are_left_to_their_agents() -> None:
    """The judging agent gives markers only for its own ranks; its verdict counts all ranks."""
    world, _ = stalled()
    watching = Accompanied(world, with_others(world), only=LOCAL).until(30.0)
    assert watching.verdicts[0][1].verdict.waiting == (0, 1, 3)
    assert [bool(watching.markers(rank)) for rank in range(4)] == [True, True, False, False]


def test_ranks_seen_some_time_ago_do_not_age() -> None:
    """An old view of remote ranks is no stall: it is unknown whether they still wait."""
    world = FakeWorld(4)
    world.ranks[2].enter(EVERYBODY, 5.0)
    shown = with_others(world)(world.snapshot(6.0, LOCAL))
    assert isinstance(shown, Leads)
    remote = {rank: view for rank, view in shown.world.ranks.items() if view.is_remote}
    watching = Accompanied(
        world, lambda seen: Leads(dataclasses.replace(seen, ranks={**seen.ranks, **remote})), only=LOCAL
    )
    watching.until(60.0)
    assert watching.reported == []
    watching.peer_agents.role = with_others(world)
    watching.until(62.0)
    assert len(watching.verdicts) == 1
