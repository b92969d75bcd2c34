"""The detector in company: it judges for all, follows another agent, or waits; and what goes from one to the next."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection

from otel_torchdist import semconv
from otel_torchdist.stall.company import Awaits, Follows, Presides, Seating
from otel_torchdist.stall.detector import HURRIED_LOOK_S, LOOK_S, Detector
from otel_torchdist.stall.events import (
    Incident,
    IncidentHandedOver,
    MarkerDue,
    Occasion,
    Ruling,
    StacksOverdue,
    StacksWanted,
)
from otel_torchdist.stall.incident import NoStepTraces, incident_spans, marker_span
from otel_torchdist.stall.sentence import sentence
from otel_torchdist.stall.verdict import Doubt, VerdictKind
from otel_torchdist.stall.world import Lane, WorldSnapshot
from otel_torchdist.tape.layout import Flag
from tests.stall.judging import the_verdict
from tests.stall.simulated_world import RUN, SECOND, START_NS, SimulatedWorld, group_of
from tests.stall.watching import EVERYBODY, THRESHOLD_S, Watching, stalled

LOCAL = (0, 1)
"""Ranks on the node whose detector is tested, where there are others."""


class Seated:
    """Other agents, as one would see them that tells the detector what the test wants.

    Attributes:
        seating: What it tells, given what the detector sees by itself.
        uneasy: Whether the detector saw a stall coming, at each look.
        told: What was said of the run, at each look at which this agent judged.
    """

    def __init__(self, seating: Callable[[WorldSnapshot], Seating]) -> None:
        self.seating = seating
        self.uneasy: list[bool] = []
        self.told: list[Ruling | None] = []

    def meet(self, world: WorldSnapshot, is_uneasy: bool) -> Seating:
        """See `Company`."""
        self.uneasy.append(is_uneasy)
        return self.seating(world)

    def tell(self, run: int, ruling: Ruling | None) -> None:
        """See `Company`."""
        assert run == RUN
        self.told.append(ruling)

    def want_calls(self, run: int, windows: frozenset[tuple[Lane, int]]) -> None:
        """See `Company`; nothing differs here."""
        assert windows == frozenset()

    def ask(self, wanted: StacksWanted | StacksOverdue) -> None:
        """See `Company`; the detector's owner does that."""
        raise AssertionError(wanted)

    def asked(self) -> list[StacksWanted | StacksOverdue]:
        """See `Company`; likewise."""
        raise AssertionError


class Accompanied(Watching):
    """A detector among others."""

    def __init__(
        self,
        world: SimulatedWorld,
        seating: Callable[[WorldSnapshot], Seating],
        began_s: float = 0,
        only: Collection[int] | None = None,
    ) -> None:
        super().__init__(world, began_s=began_s)
        self._only = range(len(world.ranks)) if only is None else only
        self.company = Seated(seating)
        self.detector = Detector(THRESHOLD_S, START_NS + round(began_s * SECOND), company=self.company)

    def _picture(self) -> WorldSnapshot:
        picture = super()._picture()
        return dataclasses.replace(picture, ranks={rank: picture.ranks[rank] for rank in self._only})


def follows(ruling: Ruling | None, is_hurried: bool = False) -> Callable[[WorldSnapshot], Seating]:
    """Another agent judges, and says this."""
    return lambda world: Follows(ruling, is_hurried)


def a_ruling(epoch: int = 3, of: int = 0) -> Ruling:
    """What another agent says of the stalled world."""
    world, numbers = stalled()
    site = world.ranks[0].open[numbers[0]].site
    return Ruling(Incident(RUN, "what they named it", of), epoch, site, "rank 2 sleeps", {semconv.VERDICT: "absent"})


# --- another agent judges -----------------------------------------------------------------------------------------


def test_who_follows_gives_no_verdict() -> None:
    """Ranks stall for long, another agent judges and says nothing: neither does this one, nor does it ask ranks."""
    watching = Accompanied(stalled()[0], follows(None))
    watching.until(60.0)
    assert watching.events == []
    assert watching.company.told == []


def test_who_follows_marks_with_the_words_of_who_judges() -> None:
    """Markers come at doubling ages, as ever, and each carries what the other agent says at that time."""
    watching = Accompanied(stalled()[0], follows(a_ruling(1)))
    watching.until(20.0)
    watching.company.seating = follows(a_ruling(2))
    watching.until(60.0)
    assert {type(event) for _, event in watching.events} == {MarkerDue}
    for rank in (0, 1, 3):
        assert [marker.nth for marker in watching.markers(rank)] == [1, 2, 3]
        assert [marker.ruling.epoch for marker in watching.markers(rank)] == [1, 2, 2]
    assert watching.markers(2) == []


def test_marker_of_who_follows() -> None:
    """Its text is the other agent's sentence, and it links to the other agent's root; elsewhere that is said."""
    world, _ = stalled()
    pair = group_of(2, 3, nth=1)
    world.ranks[2].enter(pair, 5.0)
    ruling = a_ruling(3)
    watching = Accompanied(world, follows(ruling))
    watching.until(16.0)
    here, elsewhere = (marker_span(watching.markers(rank)[0], NoStepTraces()) for rank in (0, 2))
    assert here.error == ruling.text
    assert elsewhere.error is not None
    assert elsewhere.error.endswith("; the cause lies elsewhere: rank 2 sleeps")
    for span in (here, elsewhere):
        assert ruling.incident.root(3) in span.links
        assert span.attributes[semconv.VERDICT] == "absent"
        age_s = span.attributes[semconv.STALL_AGE]
        assert isinstance(age_s, float) and 10 <= age_s <= 10 + LOOK_S


def test_looks_are_hurried_while_who_judges_is() -> None:
    """An agent that is asked at short intervals looks as often, so that what it shows is new."""
    watching = Accompanied(stalled()[0], follows(None, is_hurried=True))
    watching.look()
    assert watching.detector.next_look_s == HURRIED_LOOK_S
    watching.company.seating = follows(None)
    watching.look()
    assert watching.detector.next_look_s == LOOK_S


def test_who_awaits_says_nothing_and_looks_again_soon() -> None:
    """Until the others have answered there is neither verdict nor marker; then the verdict comes in time."""
    watching = Accompanied(stalled()[0], lambda world: Awaits())
    watching.until(15.5)
    assert watching.events == []
    assert watching.detector.next_look_s == HURRIED_LOOK_S
    assert watching.company.told == []
    watching.company.seating = Presides
    watching.until(17.0)
    ((given_s, given),) = watching.verdicts
    assert given_s <= 16.7
    assert given.verdict.ranks == (2,)


# --- when the others are asked ------------------------------------------------------------------------------------


def uneasy_times(watching: Accompanied) -> list[float]:
    """At which of its looks the detector saw a stall coming; one look a tenth of a second."""
    times: list[float] = []
    while watching.now_s < 16.0:
        watching.now_s = round(watching.now_s + 0.1, 1)
        watching.look()
        if watching.company.uneasy[-1]:
            times.append(watching.now_s)
    return times


def test_uneasy_before_the_threshold() -> None:
    """The others are asked from a second before a wait is a stall, and not before."""
    times = uneasy_times(Accompanied(stalled()[0], follows(None)))
    assert times[0] == 14.0
    assert len(times) == 21


def test_uneasy_where_somebody_has_died() -> None:
    """A rank that is gone makes its node uneasy at once; one that has ended in good order does not."""
    world = SimulatedWorld(2)
    watching = Accompanied(world, follows(None))
    world.ranks[0].die(1.0)
    assert uneasy_times(watching)[0] == 0.1
    healthy = Accompanied(SimulatedWorld(2), follows(None))
    assert uneasy_times(healthy) == []


def test_uneasy_while_an_incident_is_on() -> None:
    """The others are asked as long as an incident is on, though no rank of this node waits in it."""
    world, _ = stalled(late=0)
    watching = Accompanied(world, with_others(world), only=(0,))
    watching.until(20.0)
    assert watching.verdicts[0][1].verdict.ranks == (0,)
    assert watching.company.uneasy[0] is False
    assert watching.company.uneasy[-1] is True


# --- this agent judges for all ------------------------------------------------------------------------------------


def with_others(world: SimulatedWorld) -> Callable[[WorldSnapshot], Seating]:
    """This agent judges; ranks that are not local are seen by another one."""

    def presides(seen: WorldSnapshot) -> Seating:
        now_s = (seen.taken_ns - START_NS) / SECOND
        there = world.snapshot(now_s, [rank for rank in range(len(world.ranks)) if rank not in seen.ranks])
        afar = {rank: dataclasses.replace(view, is_afar=True) for rank, view in there.ranks.items()}
        return Presides(dataclasses.replace(seen, ranks={**seen.ranks, **afar}))

    return presides


def test_who_judges_tells_the_others() -> None:
    """What is said goes to the others in words: nothing, each epoch of an incident, and nothing when it is over."""
    world, numbers = stalled()
    watching = Accompanied(world, with_others(world), only=LOCAL)
    watching.until(30.0)
    world.ranks[2].end(world.ranks[2].enter(EVERYBODY, 30.0), 30.1)
    for rank, number in numbers.items():
        world.ranks[rank].end(number, 30.1)
    watching.until(32.0)
    told = watching.company.told
    assert told[0] is None and told[-1] is None
    rulings = list(dict.fromkeys(ruling.epoch for ruling in told if ruling is not None))
    assert rulings == [1, 2]
    first = next(ruling for ruling in told if ruling is not None)
    (_, given), *_ = watching.verdicts
    age_s = (given.world.taken_ns - given.verdict.since_ns) / 1e9
    assert first.text == sentence(given.verdict, age_s)
    assert (first.incident, first.site) == (given.incident, given.verdict.site)
    assert first.attributes[semconv.VERDICT] == "absent"


def test_markers_of_other_nodes_are_left_to_their_agents() -> None:
    """Who judges marks the operations of its own ranks only; the verdict counts all."""
    world, _ = stalled()
    watching = Accompanied(world, with_others(world), only=LOCAL)
    watching.until(30.0)
    assert watching.verdicts[0][1].verdict.waiting == (0, 1, 3)
    assert [bool(watching.markers(rank)) for rank in range(4)] == [True, True, False, False]


def test_ranks_seen_some_time_ago_do_not_age() -> None:
    """What another agent showed of its ranks long ago is no stall now: that they still wait is not known."""
    world = SimulatedWorld(4)
    world.ranks[2].enter(EVERYBODY, 5.0)
    shown = with_others(world)(world.snapshot(6.0, LOCAL))
    assert isinstance(shown, Presides)
    afar = {rank: view for rank, view in shown.world.ranks.items() if view.is_afar}
    watching = Accompanied(
        world, lambda seen: Presides(dataclasses.replace(seen, ranks={**seen.ranks, **afar})), only=LOCAL
    )
    watching.until(60.0)
    assert watching.events == []
    watching.company.seating = with_others(world)
    watching.until(62.0)
    assert len(watching.verdicts) == 1


# --- from one agent to the next -----------------------------------------------------------------------------------


def test_incident_is_handed_over() -> None:
    """An agent that judged and follows now says so once, and says no more of its incident, not even that it ends."""
    world, numbers = stalled()
    watching = Accompanied(world, Presides)
    watching.until(17.0)
    (_, given), *_ = watching.verdicts
    watching.events.clear()
    watching.company.seating = follows(None)
    watching.until(30.0)
    for rank, number in numbers.items():
        world.ranks[rank].end(number, 30.1)
    watching.until(32.0)
    assert [event for _, event in watching.events] == [IncidentHandedOver(given.incident)]


def test_nothing_to_hand_over() -> None:
    """Without an incident that was told there is nothing to say; one that was about to be told is dropped."""
    watching = Accompanied(stalled()[0], Presides)
    watching.answers_after_s = None
    watching.until(15.5)
    assert watching.detector.next_look_s == HURRIED_LOOK_S
    watching.events.clear()
    watching.company.seating = follows(None)
    watching.until(20.0)
    assert watching.events == []
    assert watching.detector.next_look_s == LOOK_S


def test_taking_over_continues_the_incident() -> None:
    """Whoever takes over goes on in the same trace, under a later epoch, with a link to what was said before."""
    ruling = a_ruling(epoch=3, of=0)
    world, _ = stalled()
    watching = Accompanied(world, follows(ruling))
    watching.until(17.0)
    watching.company.seating = lambda seen: Presides(seen, 2)
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
    """However far the other agent came, and however old the wait is, the next epoch is greater than both."""
    for told in (1, 1_000_000):
        world, _ = stalled()
        watching = Accompanied(world, follows(a_ruling(epoch=told)), began_s=10.0)
        watching.until(17.0)
        watching.company.seating = Presides
        watching.until(20.0)
        (_, given), *_ = watching.verdicts
        assert given.epoch > max(told, 10_000)


def test_agents_that_judge_at_once_share_a_trace_and_no_span() -> None:
    """Two agents that cannot reach each other tell the same incident in one trace, under ids of their own."""
    ids: list[set[int]] = []
    traces: set[int] = set()
    for seat in (0, 2):
        watching = Accompanied(stalled()[0], lambda seen, seat=seat: Presides(seen, seat))
        watching.until(17.0)
        spans = incident_spans(watching.verdicts[0][1])
        ids.append({span.span_id for span in spans})
        traces |= {span.trace_id for span in spans}
    assert len(traces) == 1
    assert ids[0].isdisjoint(ids[1])


def test_what_was_heard_of_is_over() -> None:
    """A stall that begins after the other agent has gone is another one, with a name and epochs of its own."""
    heard = a_ruling(epoch=3)
    for ruling in (heard, None):
        world, numbers = stalled()
        watching = Accompanied(world, follows(ruling))
        watching.until(16.0)
        world.ranks[2].end(world.ranks[2].enter(EVERYBODY, 16.0), 16.1)
        for rank, number in numbers.items():
            world.ranks[rank].end(number, 16.1)
        watching.company.seating = Presides
        watching.until(20.0)
        for rank in (0, 1, 3):
            world.ranks[rank].enter(EVERYBODY, 20.0)
        watching.until(33.0)
        ((_, given),) = watching.verdicts
        assert given.incident.name != heard.incident.name
        assert (given.epoch, given.predecessor) == (1, None)


# --- out of reach -------------------------------------------------------------------------------------------------


def cut_off(world: SimulatedWorld, visible: tuple[int, ...], **hosts: int) -> WorldSnapshot:
    """A picture without the ranks of agents that do not answer."""
    picture = world.snapshot(30.0, visible)
    return dataclasses.replace(picture, unreachable={rank: host for host, rank in hosts.items()})


def test_unreachable_ranks_are_named() -> None:
    """All who can be seen wait, and those who cannot are out of reach: they are named, with their hosts."""
    world, _ = stalled()
    verdict = the_verdict(cut_off(world, (0, 1), beta=2, alpha=3))
    assert (verdict.kind, verdict.ranks, verdict.hosts) == (VerdictKind.UNREACHABLE, (2, 3), ("alpha", "beta"))
    assert sentence(verdict, 25.0) == (
        "ranks 2-3 are out of reach (the agents on alpha, beta do not answer), "
        "and all_reduce (sequence 2, default_pg) has waited for 25.0 s; 2 of 4 ranks wait; 2 of 4 ranks report"
    )


def test_who_is_seen_to_be_absent_is_blamed_first() -> None:
    """A visible rank that does not come is named, not those of which nothing is known."""
    world, _ = stalled()
    verdict = the_verdict(cut_off(world, (0, 1, 2), beta=3))
    assert (verdict.kind, verdict.ranks, verdict.hosts) == (VerdictKind.ABSENT, (2,), ())


def test_who_is_seen_to_be_dead_is_blamed_first() -> None:
    """So is a visible rank that has died."""
    world, _ = stalled()
    world.ranks[2].die(6.0)
    verdict = the_verdict(cut_off(world, (0, 1, 2), beta=3))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.DEAD, (2,))


def test_silent_is_not_unreachable() -> None:
    """Ranks of which no agent has ever spoken are silent; one that is out of reach and no member is not named."""
    world, _ = stalled()
    verdict = the_verdict(cut_off(world, (0, 1), beta=9))
    assert (verdict.kind, verdict.ranks, verdict.doubt) == (VerdictKind.UNKNOWN, (), Doubt.SILENT)


def test_peer_out_of_reach() -> None:
    """A receive from a rank whose agent does not answer leads to that rank."""
    world = SimulatedWorld(2)
    number = world.ranks[0].enter(
        group_of(0, 1), 5.0, "recv", flags=Flag.POINT_TO_POINT | Flag.END_BY_WAIT, peer=1, blocking=False
    )
    world.ranks[0].wait_for(number, 5.1)
    verdict = the_verdict(cut_off(world, (0,), beta=1))
    assert (verdict.kind, verdict.ranks, verdict.hosts) == (VerdictKind.UNREACHABLE, (1,), ("beta",))


def test_reach_that_comes_back_changes_the_verdict() -> None:
    """Out of reach is what is said first; when the other agent answers again it is said who is late."""
    world, _ = stalled()
    away = {2: "beta", 3: "beta"}
    lost = Accompanied(world, lambda seen: Presides(dataclasses.replace(seen, unreachable=away)), only=LOCAL)
    lost.until(17.0)
    lost.company.seating = with_others(world)
    lost.until(20.0)
    assert [(event.occasion, event.verdict.kind, event.verdict.ranks) for _, event in lost.verdicts] == [
        (Occasion.OPENED, VerdictKind.UNREACHABLE, (2, 3)),
        (Occasion.CHANGED, VerdictKind.ABSENT, (2,)),
    ]
