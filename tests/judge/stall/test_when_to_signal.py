"""Stack requests by signal: only while an incident waits for the stack, and no Python thread of the rank runs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from otel_torchdist.judge.stall.events import Occasion, StacksOverdue
from otel_torchdist.judge.verdict.wording.places import describe_place
from otel_torchdist.judge.world.places import PlaceSource
from otel_torchdist.model.rank_state.stacks import Stacks
from tests.support.worlds.detectors import EVERYBODY, LOAD_BATCH, STACK, Watching, stalled
from tests.support.worlds.fake_world import FakeWorld

if TYPE_CHECKING:
    from typing_extensions import Self

LATE = 2
CROSSED_S = 15.0
"""When the ranks that wait since 5.0 s have done so for the threshold."""
PROMISE_S = 2.0
"""The first verdict comes within this time after the threshold."""


class WatchingWithSignals(Watching):
    """A watched world whose ranks answer a signal by the next poll.

    Attributes:
        held_since_s: Time since which the late rank's GIL is held; None if it is not.
        answers_signals: False for ranks that do not answer.
    """

    def __init__(self, world: FakeWorld, held_since_s: float | None, answers_signals: bool = True) -> None:
        super().__init__(world, answers_after_s=None)
        self.held_since_s = held_since_s
        self.answers_signals = answers_signals

    @property
    def signals(self) -> list[tuple[float, frozenset[int]]]:
        """The times of signals, with the tapes."""
        return [(at_s, event.nonces) for at_s, event in self.events if isinstance(event, StacksOverdue)]

    def until(self, then_s: float) -> Self:
        """Poll as often as the detector wants, with a heartbeat that stops at `held_since_s`."""
        while self.now_s < then_s:
            next_s = self.now_s + self.detector.next_check_s
            if self.held_since_s is not None:
                self.world.ranks[LATE].heartbeat_age_s = max(next_s - self.held_since_s, 0.0)
            super().until(min(next_s, then_s))
        return self

    def stacks_of(self, nonce: int) -> Stacks | None:
        """See `Watching`."""
        stacks = super().stacks_of(nonce)
        asked = [at_s for at_s, nonces in self.signals if nonce in nonces]
        if stacks is None or not self.answers_signals or not asked or asked[-1] < self.asked_s[nonce]:
            return stacks
        return Stacks(stacks.asked_ns, (STACK,), by_signal=True)


def test_first_verdict_has_the_stack_in_time() -> None:
    """If the GIL is held from the start, the signal is sent with the request, and the first verdict has the stack."""
    watching = WatchingWithSignals(stalled(LATE)[0], held_since_s=4.0)
    watching.until(CROSSED_S + PROMISE_S)
    [(at_s, nonces)] = watching.signals
    assert nonces == {0x1000 + LATE}
    assert CROSSED_S <= at_s <= CROSSED_S + 0.3
    [(given_s, given)] = watching.verdicts
    assert at_s < given_s <= CROSSED_S + 1.75
    place = given.verdict.places[LATE]
    assert (place.source, place.frame) == (PlaceSource.SIGNAL, LOAD_BATCH)
    assert describe_place(dataclasses.replace(place, frozen_for_ns=12_300_000_000), "it") == (
        "it is in load_batch at train.py:57 (stack taken by a signal while the GIL was held), "
        "and its Python threads have not run for 12.3 s"
    )


def test_gil_that_is_taken_late() -> None:
    """If the GIL is held only later, the first verdict has no stack. The next epoch, with a new request, has it."""
    watching = WatchingWithSignals(stalled(LATE)[0], held_since_s=CROSSED_S - 0.8)
    watching.until(CROSSED_S + PROMISE_S)
    assert watching.signals == []
    [(_, first)] = watching.verdicts
    assert first.verdict.places[LATE].source is not PlaceSource.SIGNAL
    watching.until(CROSSED_S + 10 + PROMISE_S)
    assert len(watching.signals) == 1
    _, (_, second) = watching.verdicts
    assert (second.occasion, second.epoch) == (Occasion.GROWN, 2)
    assert second.verdict.places[LATE].source is PlaceSource.SIGNAL


def test_verdict_that_changes_while_it_waits() -> None:
    """A rank that enters late changes the verdict, but not the time that the other rank has to answer."""
    world = FakeWorld(4)
    world.meet(EVERYBODY, 1.0)
    for rank in (0, 1):
        world.ranks[rank].enter(EVERYBODY, 5.0)
    watching = WatchingWithSignals(world, held_since_s=4.0)
    watching.until(CROSSED_S + 0.7)
    world.ranks[3].enter(EVERYBODY, CROSSED_S + 0.7)
    watching.until(CROSSED_S + PROMISE_S)
    [(_, given)] = watching.verdicts
    assert given.verdict.ranks == (LATE,)
    assert given.verdict.places[LATE].source is PlaceSource.SIGNAL


@pytest.mark.parametrize("answers", [True, False])
def test_once_for_each_request(answers: bool) -> None:
    """However often the detector polls, it sends one signal per epoch, at the doublings of the age."""
    watching = WatchingWithSignals(stalled(LATE)[0], held_since_s=4.0, answers_signals=answers)
    watching.until(100.0)
    assert len(watching.verdicts) == len(watching.signals) == 4


def test_rank_that_runs_is_not_signaled() -> None:
    """A rank whose heartbeat continues is not signaled, even if it does not answer."""
    watching = WatchingWithSignals(stalled(LATE)[0], held_since_s=None)
    watching.until(100.0)
    assert (len(watching.verdicts), watching.signals) == (4, [])


@pytest.mark.parametrize("group_waits", [False, True])
def test_rank_that_is_not_stalled_is_not_signaled(group_waits: bool) -> None:
    """The GIL may be held for any time if no rank waits, or if others wait for a different rank."""
    world = FakeWorld(5)
    world.meet(EVERYBODY, 1.0)
    if group_waits:
        for rank in (0, 1, 3):
            world.ranks[rank].enter(EVERYBODY, 5.0)
    world.ranks[4].heartbeat_age_s = 60.0
    watching = WatchingWithSignals(world, held_since_s=None)
    watching.until(100.0)
    assert (bool(watching.verdicts), watching.signals) == (group_waits, [])


def test_dead_rank_is_not_signaled() -> None:
    """A rank that is gone is not signaled."""
    world = stalled(LATE)[0]
    world.ranks[LATE].die(4.0)
    watching = WatchingWithSignals(world, held_since_s=4.0)
    watching.until(100.0)
    assert watching.verdicts
    assert watching.signals == []


def test_reader_that_was_stopped_itself() -> None:
    """After a pause of the whole machine, a rank gets a full second to answer, since it may be about to run."""
    watching = WatchingWithSignals(stalled(LATE)[0], held_since_s=CROSSED_S - 1.0)
    watching.until(CROSSED_S - 0.5)
    watching.now_s = continued_s = CROSSED_S + 5.0
    watching.until(CROSSED_S + 9.0)
    [(at_s, _)] = watching.signals
    assert continued_s + 1.0 <= at_s <= continued_s + 1.4
    assert len(watching.verdicts) == 1


def test_pause_that_does_not_explain_the_silence() -> None:
    """A rank that was silent for long before and after a pause of the whole machine is signaled at once."""
    watching = WatchingWithSignals(stalled(LATE)[0], held_since_s=CROSSED_S - 4.0)
    watching.until(CROSSED_S - 0.5)
    watching.now_s = continued_s = CROSSED_S + 0.2
    watching.until(CROSSED_S + PROMISE_S)
    [(at_s, _)] = watching.signals
    assert at_s <= continued_s + 0.3
    [(_, given)] = watching.verdicts
    assert given.verdict.places[LATE].source is PlaceSource.SIGNAL


def test_several_pauses() -> None:
    """Each pause is subtracted from the silence, even if the reader never watches for a full second between pauses."""
    watching = WatchingWithSignals(stalled(LATE)[0], held_since_s=CROSSED_S - 3.0)
    watching.until(CROSSED_S - 2.0)
    while watching.now_s < CROSSED_S + 0.9:
        watching.now_s += 0.6
        watching.until(watching.now_s + 0.3)
    assert watching.signals == []


def test_reader_that_starts_late() -> None:
    """Time before a reader's first poll counts as a pause: a rank may have been stopped until then."""
    watching = WatchingWithSignals(stalled(LATE)[0], held_since_s=4.0)
    watching.now_s = started_s = CROSSED_S + 1.0
    watching.until(CROSSED_S + 5.0)
    [(at_s, _)] = watching.signals
    assert started_s + 1.0 <= at_s <= started_s + 1.4


def test_rank_that_recovers_is_not_signaled() -> None:
    """A rank that recovers before the threshold is not signaled, although it does not answer immediately."""
    world, entered = stalled(LATE)
    watching = WatchingWithSignals(world, held_since_s=4.0)
    watching.until(CROSSED_S - 0.3)
    watching.held_since_s = None
    world.ranks[LATE].heartbeat_age_s = 0.0
    watching.until(CROSSED_S + 0.8)
    entered[LATE] = world.ranks[LATE].enter(EVERYBODY, CROSSED_S + 0.8)
    for rank, number in entered.items():
        world.ranks[rank].end(number, CROSSED_S + 0.8)
    watching.until(100.0)
    assert watching.signals == []
