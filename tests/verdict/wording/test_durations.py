"""Durations in sentences: none is below zero, whatever the clocks say."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import otel_torchdist
from otel_torchdist.cli.output.text import length
from otel_torchdist.model.kinds import How, TapeState
from otel_torchdist.model.lives import Death
from otel_torchdist.model.verdict_kinds import VerdictKind
from otel_torchdist.stall.reporting.attributes import resolution
from otel_torchdist.units import duration, passed, seconds
from otel_torchdist.verdict.first_death import FirstDeath
from otel_torchdist.verdict.model import Outcome, Verdict, locate
from otel_torchdist.verdict.past.post_mortem import examine
from otel_torchdist.verdict.rules import StallRules
from otel_torchdist.verdict.wording.ends import describe_together, span_of_time
from otel_torchdist.verdict.wording.sentence import sentence
from otel_torchdist.world.places import RankPlace
from tests.support.worlds import judging
from tests.support.worlds.fake_world import RUN, SECOND, START_NS, THRESHOLD_NS, FakeWorld, group_of
from tests.support.worlds.judging import late_world

NEGATIVE = re.compile(r"(?<![\w.])-\d[\d.,]* ?(ns|µs|ms|s|min|h|d)\b")
PACKAGE = Path(otel_torchdist.__file__).parent
RAW = re.compile(r":[,.]*\.[\d{][^}]*f\} (s|ms)\b")
TIMES = st.integers(-(10**12), 10**12)


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e9, max_value=1e9))
def test_formats(length_s: float) -> None:
    """A time that has passed is at least zero, in each of the formats."""
    texts = (seconds(length_s), length(length_s), span_of_time(length_s), duration(round(length_s * 1e9)))
    assert not any("-" in text for text in texts), texts
    assert passed(length_s) >= 0


def test_nothing_formats_seconds_itself() -> None:
    """What words verdicts, findings and reports gives all durations to these formats."""
    folders = ("verdict", "stall", "cli/diagnose", "cli/output")
    sources = [path for folder in folders for path in (PACKAGE / folder).rglob("*.py")]
    found = {str(path.relative_to(PACKAGE)) for path in sources if RAW.search(path.read_text())}
    # `length`, and milliseconds that have `passed`.
    assert found == {"cli/output/text.py", "stall/findings/stragglers.py"}


def worded(verdict: Verdict) -> Verdict:
    """The same with each of its times before its beginning."""
    places = {
        rank: dataclasses.replace(place, child_for_ns=-5, frozen_for_ns=-(10**9), checkpoint_for_ns=-(10**9))
        for rank, place in verdict.places.items()
    }
    return dataclasses.replace(verdict, places=places)


@settings(max_examples=50)
@given(st.sampled_from(list(VerdictKind)), TIMES, TIMES)
def test_sentences(kind: VerdictKind, age_ns: int, moment_ns: int) -> None:
    """Of every verdict that can be put into words without more evidence, however its times are wrong."""
    if kind in (VerdictKind.MISMATCHED, VerdictKind.SHARED_GROUP, VerdictKind.STUCK):
        return
    world = late_world(2).snapshot(21.0)
    verdict = locate(world, judging.located_verdict(world))
    changed = dataclasses.replace(worded(verdict), kind=kind, since_ns=START_NS + age_ns)
    for text in (sentence(changed, age_ns / 1e9), sentence(changed, changed.age_ns(START_NS + moment_ns) / 1e9)):
        assert not NEGATIVE.search(text), text
    for outcome in Outcome:
        text = resolution(changed, outcome, changed.age_ns(START_NS + moment_ns))
        assert not NEGATIVE.search(text), text


@given(TIMES, TIMES, st.integers(-(10**10), 10**10))
def test_deaths(asked_ns: int, at_ns: int, spread_ns: int) -> None:
    """A signal that seems to have come after the death, and ends that seem to precede the first."""
    death = Death(at_ns, status=9, asked=15, asked_ns=asked_ns)
    first = FirstDeath((0,), {0: death}, True, False, False, True, at_ns, None, spread_ns)
    assert not NEGATIVE.search(describe_together(first))


@pytest.mark.parametrize("gap_s", [0.0, 0.4, 3.0])
def test_death_after_a_failed_operation(gap_s: float) -> None:
    """A run that ended outside of operations, after one that failed on the others: that was blocked until it failed."""
    world = FakeWorld(3)
    group = group_of(0, 1, 2)
    world.meet(group, 1.0)
    for rank in world.ranks:
        is_first = rank.rank == 0
        rank.end(rank.enter(group, 2.0), 4.0, How.WAIT if is_first else How.FAILED, "" if is_first else "RuntimeError")
        rank.seen_alive_s = 4.0
        failure = "ValueError" if is_first else "RuntimeError"
        rank.is_seen_to_die(4.0 + gap_s + rank.rank * 0.5, 1 << 8, TapeState.FAILED, failure)
    views = [rank.view(60.0) for rank in world.ranks]
    found = examine(RUN, 3, views, StallRules(THRESHOLD_NS), START_NS + 60 * SECOND)
    assert found.verdict is not None
    assert found.verdict.since_ns == START_NS + 2 * SECOND
    assert found.age_ns == 2 * SECOND


def test_places_are_worded() -> None:
    """A place's times are before its beginning here, so that the test above means something."""
    world = late_world(2).snapshot(21.0)
    verdict = worded(locate(world, judging.located_verdict(world)))
    assert all(isinstance(place, RankPlace) and place.frozen_for_ns == -(10**9) for place in verdict.places.values())
