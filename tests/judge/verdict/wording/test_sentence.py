"""Sentences of verdicts: their length, and the durations in them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import otel_torchdist
from otel_torchdist.judge.stall.reporting.attributes import resolution
from otel_torchdist.judge.verdict.first_death import FirstDeath
from otel_torchdist.judge.verdict.past.post_mortem import examine
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.judge.verdict.verdict import Doubt, Link, Outcome, Sharing, Verdict, locate
from otel_torchdist.judge.verdict.wording.ends import describe_together, span_of_time
from otel_torchdist.judge.verdict.wording.sentence import (
    MAX_LENGTH,
    MAX_LENGTH_ALONE,
    MAX_LENGTH_WITH_PLACE,
    compose,
    describe_verdict,
    sentence,
    with_short_start,
)
from otel_torchdist.judge.world.divergence import CallSide, Divergence
from otel_torchdist.judge.world.mismatch import Field, Mismatch
from otel_torchdist.judge.world.places import PlaceSource, RankPlace
from otel_torchdist.model.calls import GroupView, OperationId
from otel_torchdist.model.kinds import How, TapeState
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.rank_state.lives import Death
from otel_torchdist.model.rank_state.occupations import SharedGroup
from otel_torchdist.model.reports.finding import FindingKind
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.text import duration, elapsed, seconds
from otel_torchdist.model.times import length
from otel_torchdist.tape.names.reader import MAIN_THREAD
from tests.support.worlds import judging
from tests.support.worlds.fake_world import RUN, SECOND, START_NS, THRESHOLD_NS, FakeWorld, group_of
from tests.support.worlds.judging import late_world, the_verdict

# ----------------------------------------------------------------------------------------------------------------------
# The first sentence is short for all names, and states the rank, the operation, and the lines of both sides.


LONG = "a_name_that_its_author_has_not_found_too_long_until_now"
GROUP = group_of(0, 1, 2, 3, description=f"mesh_{LONG}")
WAITS = CallSiteName(f"Trainer.{LONG}.<locals>.reduce", f"/home/ada/{LONG}_trainer.py", 1042)
MISSING = CallSiteName(f"Dataset.{LONG}", f"/home/ada/{LONG}_dataset.py", 1057, f"package.{LONG}")
BOTH_LINES = (r":1042\b", r":1057\b")


A_DEATH = FirstDeath((2,), {}, False, False, False, True, 0, None, 0)
OF_TWO_CALLS = (VerdictKind.CIRCULAR, VerdictKind.SHARED_GROUP)
"""Two operations with the lines of both are more than other kinds have to say."""


@dataclasses.dataclass(frozen=True)
class Job:
    """The lines of a job.

    Attributes:
        waits: The line at which all ranks but one wait.
        missing: The line of the missing rank.
    """

    operation: str
    label: str
    group: GroupView
    waits: CallSiteName
    missing: CallSiteName
    thread: str
    host: str
    error: str

    @property
    def shared(self) -> SharedGroup:
        """Build two threads that call in the verdict's group."""
        calls = ("all_reduce", self.operation), (self.waits, self.missing)
        return SharedGroup(self.group.key, *calls, 0, (MAIN_THREAD, f"{self.thread} (train.py)"))


WITH_LONG_NAMES = Job(
    "reduce_scatter_tensor_coalesced",
    f"FSDP {LONG}",
    GROUP,
    WAITS,
    MISSING,
    LONG,
    f"{LONG}.example.org",
    f"{LONG}Error",
)
USUAL = Job(
    "reduce_scatter_tensor",
    "FSDP model.layers.11",
    group_of(0, 1, 2, 3, description="mesh_dp_shard"),
    CallSiteName("Trainer.train_step", "/home/ada/llm/trainer.py", 1042),
    CallSiteName("Dataset.load_batch", "/home/ada/llm/dataset.py", 1057),
    "log_metrics",
    "gpu-node-017.cluster.example.org",
    "OutOfMemoryError",
)
"""Names as long as they usually are in a large job."""


def verdict_of_kind(kind: VerdictKind, job: Job = WITH_LONG_NAMES) -> Verdict:
    """Build a verdict of this kind, which names rank 2 of four."""
    world = FakeWorld(4)
    for rank in (0, 1, 3):
        world.ranks[rank].label = job.label
        world.ranks[rank].enter(job.group, 1.0, job.operation, frames=(job.waits,))
    found = the_verdict(world.snapshot(3_000.0))
    sides = tuple(CallSide(job.operation, job.label, site) for site in (job.waits, job.missing))
    parties = ("4,096 elements", (0, 1, 3)), ("8,192 elements", (2,))
    waits = found.roll.waits
    links = ((2, 3, job.missing), (3, 2, job.waits))
    where = found.operation_id, found.operation, job.group, job.label
    return dataclasses.replace(
        found,
        roll=dataclasses.replace(found.roll, waits={**waits, 2: waits[3]}),
        kind=kind,
        ranks=(2, 3) if kind is VerdictKind.CIRCULAR else (2,),
        places={rank: RankPlace(PlaceSource.STACK, job.missing if rank == 2 else job.waits) for rank in range(4)},
        mismatch=mismatch_of(found.operation_id, parties, sides, job.operation)
        if kind is VerdictKind.MISMATCHED
        else None,
        circle=tuple(Link(rank, *where, missing=missing, call_site=site) for rank, missing, site in links)
        if kind is VerdictKind.CIRCULAR
        else (),
        doubt=Doubt.RECORDS_LOST if kind is VerdictKind.UNKNOWN else None,
        hosts=(job.host,) if kind is VerdictKind.UNREACHABLE else (),
        first=None if kind is not VerdictKind.DEAD else A_DEATH,
        sharing=Sharing((0, 1), job.shared) if kind is VerdictKind.SHARED_GROUP else None,
        failures={2: job.error} if kind is VerdictKind.DEAD else {},
    )


def mismatch_of(
    operation_id: OperationId,
    parties: tuple[tuple[str, tuple[int, ...]], ...],
    sides: tuple[CallSide, ...],
    operation: str = "reduce_scatter_tensor_coalesced",
) -> Mismatch:
    """Build the mismatch of a verdict."""
    ways = Divergence(sides, left_out=sides[0])
    return Mismatch(operation_id, Field.SHAPE, operation, parties, divergence=ways)


def first_of(text: str) -> str:
    """Return the first sentence of a text."""
    return re.split(r"\. (?=[A-Z0-9]|next:)", text)[0]


@pytest.mark.parametrize("kind", VerdictKind)
def test_first_sentence_in_a_usual_job(kind: VerdictKind) -> None:
    """The first sentence fits into two terminal lines uncut: ranks, operation and, if a rank is named, its line."""
    lead = first_of(sentence(verdict_of_kind(kind, USUAL), 312.0))
    assert len(lead) <= MAX_LENGTH, lead
    assert "\N{HORIZONTAL ELLIPSIS}" not in lead
    assert USUAL.operation in lead
    assert "dataset.py:1057" in lead
    if kind in (*OF_TWO_CALLS, VerdictKind.MISMATCHED, VerdictKind.ABSENT):
        assert "trainer.py:1042" in lead


@pytest.mark.parametrize("kind", VerdictKind)
def test_next_step_of_every_kind(kind: VerdictKind) -> None:
    """The step comes last, with names and lines, and without placeholders."""
    text = sentence(verdict_of_kind(kind, USUAL), 312.0)
    before, _, step = text.partition(". next: ")
    assert before == describe_verdict(verdict_of_kind(kind, USUAL), 312.0)
    assert step.strip()
    assert len(step) <= MAX_LENGTH
    assert not re.search(r"[{}]|\.$", step)
    assert kind.traits.next_step.strip()


@pytest.mark.parametrize("kind", FindingKind)
def test_next_step_of_every_finding(kind: FindingKind) -> None:
    """Every finding has a next step too."""
    assert kind.next_step.strip()
    assert kind.with_next_step("rank 2 is late") == f"rank 2 is late. next: {kind.next_step}"


def test_first_sentence_of_a_finding() -> None:
    """Clauses that do not fit move to the second sentence, here those on values of other ranks."""
    first = f"rank 2 is the first with infinite values in the inputs of {USUAL.operation} (sequence 7, mesh_dp_shard)"
    more = ["called in train at trainer.py:1042", "the inputs of ranks 0-1,3 were finite", "one of 12 parameters"]
    said = with_short_start("; ".join([first, *more]))
    assert said == f"{first}; {more[0]}; {more[1]}. One of 12 parameters"
    assert len(first_of(said)) <= MAX_LENGTH
    assert with_short_start(first) == first


@pytest.mark.parametrize("kind", VerdictKind)
def test_first_sentence_of_every_kind(kind: VerdictKind) -> None:
    """Names are cut in the middle: line numbers, and the ends that distinguish two files, remain."""
    lead = first_of(sentence(verdict_of_kind(kind), 2_999.0))
    assert len(lead) <= (MAX_LENGTH_ALONE if kind in OF_TWO_CALLS else MAX_LENGTH_WITH_PLACE), lead
    assert lead.startswith(("rank 2 ", "ranks 2-3 ", "all 4 ranks ", "two threads of ranks 0-1 ", "reduce_")), lead
    wanted = {
        VerdictKind.MISMATCHED: BOTH_LINES,
        VerdictKind.CIRCULAR: BOTH_LINES,
        VerdictKind.ABSENT: BOTH_LINES[1:],
    }
    for line in wanted.get(kind, ()):
        assert re.search(line, lead), lead


def test_what_does_not_fit_comes_after() -> None:
    """Clauses that do not fit begin the second sentence, in their order."""
    clauses = ["rank 2 has not come", *(f"clause {number} of many words and no long name" for number in range(6))]
    said = compose(clauses, ["the rest"])
    first, _, second = said.partition(". ")
    assert len(first) <= MAX_LENGTH < len(said)
    assert [*first.split("; "), *second.split("; ")] == [
        *clauses[:5], clauses[5].capitalize(), *clauses[6:], "the rest",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("first", "more", "said"),
    [
        (["a"], [], "a"),
        (["a", "b"], [], "a; b"),
        (["a", "b"], ["c", "d"], "a; b. C; d"),
    ],
)
def test_short_clauses(first: list[str], more: list[str], said: str) -> None:
    """Text that fits is unchanged."""
    assert compose(first, more) == said


# --- Durations in sentences: none is below zero, whatever the clocks say ----------------------------------------------


NEGATIVE = re.compile(r"(?<![\w.])-\d[\d.,]* ?(ns|µs|ms|s|min|h|d)\b")
PACKAGE = Path(otel_torchdist.__file__).parent
RAW = re.compile(r":[,.]*\.[\d{][^}]*f\} (s|ms)\b")
TIMES = st.integers(-(10**12), 10**12)


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e9, max_value=1e9))
def test_formats(length_s: float) -> None:
    """Elapsed times are never negative, in any format."""
    texts = (seconds(length_s), length(length_s), span_of_time(length_s), duration(round(length_s * 1e9)))
    assert not any("-" in text for text in texts), texts
    assert elapsed(length_s) >= 0


def test_nothing_formats_seconds_itself() -> None:
    """All durations in verdicts, findings and reports use these formats."""
    folders = ("judge", "cli/diagnose", "cli/output", "runs")
    sources = [path for folder in folders for path in (PACKAGE / folder).rglob("*.py")]
    found = {str(path.relative_to(PACKAGE)) for path in sources if RAW.search(path.read_text())}
    # Milliseconds that have `passed`.
    assert found == {"judge/stall/findings/stragglers.py"}


def worded(verdict: Verdict) -> Verdict:
    """Return the same object with each of its times before its start."""
    places = {
        rank: dataclasses.replace(place, child_for_ns=-5, frozen_for_ns=-(10**9), checkpoint_for_ns=-(10**9))
        for rank, place in verdict.places.items()
    }
    return dataclasses.replace(verdict, places=places)


@settings(max_examples=50)
@given(st.sampled_from(list(VerdictKind)), TIMES, TIMES)
def test_sentences(kind: VerdictKind, age_ns: int, moment_ns: int) -> None:
    """Sentences of all kinds of verdicts have no negative durations, even if their times are wrong."""
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
    """Nor have sentences on deaths with a signal after the death, or with ends before the first."""
    death = Death(at_ns, status=9, asked=15, asked_ns=asked_ns)
    first = FirstDeath((0,), {0: death}, True, False, False, True, at_ns, None, spread_ns)
    assert not NEGATIVE.search(describe_together(first))


@pytest.mark.parametrize("gap_s", [0.0, 0.4, 3.0])
def test_death_after_a_failed_operation(gap_s: float) -> None:
    """After a death outside of operations, an operation that failed on the others counts as blocked until it failed."""
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
    """The places of these verdicts have times before their start, so that the tests above are effective."""
    world = late_world(2).snapshot(21.0)
    verdict = worded(locate(world, judging.located_verdict(world)))
    assert all(isinstance(place, RankPlace) and place.frozen_for_ns == -(10**9) for place in verdict.places.values())
