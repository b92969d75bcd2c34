"""Reports never contradict themselves, neither while a job hangs nor after its end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_torchdist.cli.diagnose.report import VERDICT, conclusion_of
from otel_torchdist.cli.output.text import fates
from otel_torchdist.judge.stall.events import IncidentResolved, VerdictGiven
from otel_torchdist.judge.stall.findings.watch import FindingWatch
from otel_torchdist.judge.stall.reporting.attributes import resolution_of
from otel_torchdist.judge.verdict.past.post_mortem import examine
from otel_torchdist.judge.verdict.wording.sentence import sentence
from otel_torchdist.model.reports.finding import Finding, JudgedWorld
from otel_torchdist.model.snapshot import life_in
from otel_torchdist.node.job.runs.runs import Run
from otel_torchdist.runs.diagnosis.diagnosis import Diagnosis, RankAccount
from otel_torchdist.runs.diagnosis.timeout_hints import timeout_hints
from tests.support.worlds.detectors import RULES, Watching
from tests.support.worlds.fake_world import RUN, SECOND, START_NS, WALL_OFFSET_NS
from tests.support.worlds.stories import Story

STORIES, PARTS = 240, 8
KINDS = ("has not entered", "was killed")
RANK = r"rank {r}\b"
GONE = r"process of rank {r} is gone"
EXCLUSIVE = (
    (r"(\(sequence \d+, \w+\))[^\n]*has been blocked for[^\n]*\n(.*\n)*[^\n]*\1; it did not hang", ""),
    (r"\d of \d ranks wait", "no operation was open"),
    ("has been blocked for", "this has blocked"),
    ("waited for each other", r"\d of \d ranks waits?\b"),
    (f"{RANK} is dead: its process is gone", f"{RANK} was killed"),
    (f"{RANK} is dead: its process is gone", f"{RANK} has exited"),
    ("nothing shows which was first", "before the others ended"),
    ("no rank caused it", "before the others ended"),
    ("(?m)^verdict$", "no verdict"),
    ("(?m)^verdict$", "ended together"),
    ("it must exceed every healthy wait", "waited for each other"),
    ("it must exceed every healthy wait", r"have? entered \w+ where|has entered \w+ where"),
    ("it must exceed every healthy wait", r"(is|are) frozen|all \d ranks have entered"),
    ("it must exceed every healthy wait", "^[^\n]*(was killed|ended with)[^\n]*has been blocked"),
    (f"{RANK} has not entered", f"{RANK} has entered"),
    (f"{RANK} has not entered", f"{RANK} has exited|{RANK} has finished"),
    (f"{RANK} has exited", f"{RANK} ended with|{RANK} was killed"),
    (f"{RANK} was killed", f"{RANK} ended with"),
    (f"{RANK} is frozen", f"{RANK} was killed|{RANK} ended|{RANK} has exited"),
    (f"{RANK} (was killed|ended with)[^.;]*before the others", rf"gave up in {RANK}"),
    (GONE, rf"(raises an error|ends the process) in {RANK}"),
    (GONE, f"{RANK} is in "),
    (f"{RANK} has (not been seen|not come to)", f"{RANK} (is|was last|was) in "),
    (f"{RANK} has finished", f"{RANK} is dead"),
    (f"{RANK} is running", f"{RANK} (was killed|ended with|has exited)"),
    ("is gone; it is in ", ""),
    (r"(?<![\w.])-\d[\d.,]* ?(ms|s|min|h)\b", ""),
    (r"\b0 of \d ranks", ""),
    (r"\b([3-9]) of [12] ranks|\b4 of 3 ranks|\b2 of 1 ranks", ""),
)
"""Two patterns that never stand in one report, each about the same rank where it names one; '' is always there."""


def reports_while_it_runs(story: Story) -> Iterator[str]:
    """Play a story; yield the texts of an agent at each time, and on the end of an incident."""
    watching = Watching(story.world)
    for at_s, rank in story.ends:
        watching.until(at_s)
        story.end(rank, at_s)
    watching.until(40.0)
    for at_s in sorted({at_s for at_s, _ in watching.events}):
        events = [event for then_s, event in watching.events if then_s == at_s]
        now_ns = START_NS + round(at_s * SECOND)
        given = [event.verdict for event in events if isinstance(event, VerdictGiven)]
        said = [sentence(verdict, verdict.age_ns(now_ns) / 1e9) for verdict in given]
        said += [hint for verdict in given for hint in timeout_hints(verdict)]
        said += [event.sentence for event in events if isinstance(event, Finding)]
        yield "\n".join(said)
        yield from (resolution_of(event) for event in events if isinstance(event, IncidentResolved))


def report_afterwards(story: Story) -> str:
    """Return the report of `diagnose` on a story's end."""
    views = [rank.view(60.0) for rank in story.world.ranks]
    found = examine(RUN, len(views), views, RULES, START_NS + 60 * SECOND)
    watch, cause = FindingWatch(), found.verdict.mismatch if found.verdict is not None else None
    judged = JudgedWorld(found.moment.world, RUN)
    events = watch.compare(judged, cause) if found.moment.is_now else watch.conclude(judged, cause=cause)
    diagnosis = Diagnosis(
        run=Run(Path("job"), RUN, ()),
        post_mortem=found,
        wall_offset_ns=WALL_OFFSET_NS,
        threshold_s=RULES.threshold_s,
        ranks=tuple(RankAccount(view, life_in(view), found.moment.signs[view.rank], None, 1, "") for view in views),
        warnings=(),
    )
    title, *lines = conclusion_of(diagnosis)
    hints = timeout_hints(found.verdict) if found.verdict is not None and title == VERDICT else []
    findings = [event.sentence for event in events if isinstance(event, Finding)]
    return "\n".join([*fates(views), title, *lines, *hints, *findings])


def contradictions_in(report: str, ranks: int) -> list[tuple[str, str]]:
    """Return the contradicting pairs of phrases in a report."""
    pairs = [
        (one.replace("{r}", str(rank)), other.replace("{r}", str(rank)))
        for one, other in EXCLUSIVE
        for rank in (range(ranks) if "{r}" in one + other else range(1))
    ]
    return [(one, other) for one, other in pairs if re.search(one, report) and re.search(other, report)]


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.thorough) for part in range(1, PARTS))])
def test_stories(part: int) -> None:
    """Neither live reports nor `diagnose` contradict themselves."""
    said, kinds = [], set[str]()
    for seed in range(part * STORIES // PARTS, (part + 1) * STORIES // PARTS):
        story = Story(seed)
        reports = [*reports_while_it_runs(story), report_afterwards(story)]
        kinds |= {words for words in KINDS for report in reports if words in report}
        said += [
            f"{seed}: {pair}\n{report}"
            for report in reports
            for pair in contradictions_in(report, len(story.world.ranks))
        ]
    assert kinds == {*KINDS}  # the stories cover these kinds
    assert not said, "\n\n".join(said[:8])


def test_pairs_are_found() -> None:
    """Contradictions in a report are detected."""
    assert contradictions_in("rank 1 is frozen and it hangs; rank 1 was killed by SIGKILL", 2)
    assert not contradictions_in("rank 1 is frozen and it hangs; rank 0 was killed by SIGKILL", 2)
    assert contradictions_in("2 of 3 ranks wait; no operation was open for 10 s", 2)
    assert len(EXCLUSIVE) >= 20
