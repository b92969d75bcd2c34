"""Runs in which recording was switched off in a rank are not judged any more."""

import dataclasses

from otel_torchdist.judge.stall.events import Follows, IncidentResolved, Leads, RecordingSwitchedOff, Role, VerdictGiven
from otel_torchdist.judge.stall.watch import Detector
from otel_torchdist.model.kinds import TapeState
from otel_torchdist.model.snapshot import WorldSnapshot
from tests.support.worlds.detectors import RULES, Accompanied, Watching, stalled
from tests.support.worlds.fake_world import RUN, SECOND, START_NS


def off(world: WorldSnapshot, *ranks: int) -> WorldSnapshot:
    """A world in which recording has been switched off in some ranks."""
    views = {
        rank: dataclasses.replace(
            view, switched_off_ns=START_NS + 6 * SECOND, state=TapeState.FINISHED, alive=False, open=()
        )
        if rank in ranks
        else view
        for rank, view in world.ranks.items()
    }
    return dataclasses.replace(world, ranks=views)


def test_no_verdict_after_the_switch() -> None:
    """Ranks wait for a rank that is switched off, for longer than the threshold: one event, and no verdict."""
    world, _ = stalled()
    detector = Detector(RULES, START_NS)
    events = [event for at_s in range(6, 60) for event in detector.process([off(world.snapshot(float(at_s)), 2)])]
    [event] = events
    assert isinstance(event, RecordingSwitchedOff)
    assert event.run == RUN
    assert not detector.awaits_last_verdict
    assert detector.process([off(world.snapshot(61.0), 2)], is_last=True) == []


def test_the_control_has_a_verdict() -> None:
    """The same ranks get a verdict while recording is on."""
    world, _ = stalled()
    assert Watching(world).until(60.0).verdicts


def test_an_incident_ends() -> None:
    """A stall that was reported ends with the switch, and stays unreported when the switched-off rank is gone."""
    world, _ = stalled()
    watching = Watching(world).until(20.0)
    assert watching.verdicts
    events = watching.detector.process([off(watching.snapshot(), 0, 1, 2, 3)])
    assert [type(event) for event in events] == [IncidentResolved, RecordingSwitchedOff]
    left = world.snapshot(90.0)
    without_2 = dataclasses.replace(left, ranks={rank: view for rank, view in left.ranks.items() if rank != 2})
    assert not any(isinstance(event, VerdictGiven) for event in watching.detector.process([without_2]))


def test_another_node_is_switched_off() -> None:
    """An agent that hears of the switch while it follows gives no verdict later, when it judges half of the ranks."""
    world, _ = stalled()
    off_ns = START_NS + 6 * SECOND
    role: list[Role] = [Follows(None, off_wall_ns=off_ns)]
    watching = Accompanied(world, lambda local: role[0] if role else Leads(local, 2, off_ns), only=(0, 1))
    watching.until(7.0)
    role.clear()
    watching.until(60.0)
    assert [event for _, event in watching.events] == [RecordingSwitchedOff(RUN, off_ns)]


def test_agents_stay_to_report_the_switch() -> None:
    """An agent with peers is hurried and stays for five seconds after its ranks are switched off, and then leaves."""
    world, _ = stalled()
    watching = Accompanied(world, lambda local: Leads(local, 0))
    hurried: list[int] = []
    for at_s in range(6, 20):
        watching.detector.process([off(world.snapshot(float(at_s)), 0, 1, 2, 3)])
        if watching.detector.is_concluding:
            assert watching.peer_agents.suspects_stall[-1] or at_s == 6
            hurried.append(at_s)
    assert hurried[-1] == 10
    alone = Detector(RULES, START_NS)
    alone.process([off(world.snapshot(6.0), 0, 1, 2, 3)])
    assert not alone.is_concluding
