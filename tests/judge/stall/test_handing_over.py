"""Incidents handed over to another agent: what ends, what continues, and what is never reported twice."""

from __future__ import annotations

from otel_torchdist.judge.stall.events import IncidentHandedOver, Leads, Occasion
from otel_torchdist.judge.stall.reporting.spans import incident_spans
from otel_torchdist.judge.stall.watch import CHECK_S, HURRIED_CHECK_S
from otel_torchdist.model.reports.incident import Incident
from tests.support.worlds.detectors import EVERYBODY, Accompanied, a_ruling, follows, stalled
from tests.support.worlds.fake_world import RUN


def test_incident_is_handed_over() -> None:
    """An agent that judged and now follows reports the handover once, and nothing more about its incident."""
    world, numbers = stalled()
    watching = Accompanied(world, Leads).until(17.0)
    (_, given), *_ = watching.verdicts
    watching.events.clear()
    watching.peer_agents.role = follows(None)
    watching.until(30.0)
    for rank, number in numbers.items():
        world.ranks[rank].end(number, 30.1)
    watching.until(32.0)
    assert [event for _, event in watching.events] == [IncidentHandedOver(given.incident)]


def test_nothing_to_hand_over() -> None:
    """Without a reported incident, nothing is handed over. A pending verdict is dropped."""
    watching = Accompanied(stalled()[0], Leads)
    watching.answers_after_s = None
    watching.until(15.5)
    assert watching.detector.next_check_s == HURRIED_CHECK_S
    watching.events.clear()
    watching.peer_agents.role = follows(None)
    watching.until(20.0)
    assert watching.reported == []
    assert watching.detector.next_check_s == CHECK_S
    assert watching.detector.is_urgent  # the judging agent needs this agent's snapshots


def test_taking_over_continues_the_incident() -> None:
    """The agent that takes over continues the same trace, under a later epoch, with a link to the earlier report."""
    ruling = a_ruling(epoch=3, of=0)
    world, _ = stalled()
    watching = Accompanied(world, follows(ruling)).until(17.0)
    watching.peer_agents.role = lambda seen: Leads(seen, 2)
    watching.until(40.0)
    (_, given), (_, grown), *_ = watching.verdicts
    assert given.incident == Incident(RUN, ruling.incident.name, 2)
    assert given.incident.trace_id == ruling.incident.trace_id
    assert (given.occasion, given.epoch, given.epoch_before) == (Occasion.OPENED, 4, None)
    assert given.predecessor == ruling.incident.root(3)
    root, *_ = incident_spans(given)
    assert root.links[0] == given.predecessor
    assert (grown.occasion, grown.epoch, grown.epoch_before) == (Occasion.GROWN, 5, 4)
    assert grown.predecessor is None
    assert given.incident.root(5) not in {link for span in incident_spans(grown) for link in span.links}
    assert given.incident.root(4) in incident_spans(grown)[0].links


def test_epochs_after_a_take_over_only_grow() -> None:
    """The next epoch exceeds both the other agent's epoch and the age of the wait."""
    for last_epoch in (1, 1_000_000):
        world, _ = stalled()
        watching = Accompanied(world, follows(a_ruling(epoch=last_epoch)), began_s=10.0).until(17.0)
        watching.peer_agents.role = Leads
        watching.until(20.0)
        (_, given), *_ = watching.verdicts
        assert given.epoch > max(last_epoch, 10_000)


def test_agents_that_judge_at_once_share_a_trace_and_no_span() -> None:
    """Two agents that cannot reach each other report the same incident in one trace, under different span ids."""
    ids: list[set[int]] = []
    traces: set[int] = set()
    for agent_id in (0, 2):
        watching = Accompanied(stalled()[0], lambda seen, agent_id=agent_id: Leads(seen, agent_id)).until(17.0)
        spans = incident_spans(watching.verdicts[0][1])
        ids.append({span.span_id for span in spans})
        traces |= {span.trace_id for span in spans}
    assert len(traces) == 1
    assert ids[0].isdisjoint(ids[1])


def test_received_ruling_is_over() -> None:
    """A stall that begins after the other agent has gone is a new incident, with a new name and epochs."""
    received = a_ruling(epoch=3)
    for ruling in (received, None):
        world, numbers = stalled()
        watching = Accompanied(world, follows(ruling)).until(16.0)
        world.ranks[2].end(world.ranks[2].enter(EVERYBODY, 16.0), 16.1)
        for rank, number in numbers.items():
            world.ranks[rank].end(number, 16.1)
        watching.peer_agents.role = Leads
        watching.until(20.0)
        for rank in (0, 1, 3):
            world.ranks[rank].enter(EVERYBODY, 20.0, line=50)
        watching.until(33.0)
        ((_, given),) = watching.verdicts
        assert given.incident.name != received.incident.name
        assert (given.epoch, given.predecessor) == (1, None)
