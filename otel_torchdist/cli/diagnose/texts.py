"""What texts of other tools say about a job: a verdict, where they suffice for one, and findings; as text and JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from rich.text import Text

from otel_torchdist.analysis.statistics.result import CallSite
from otel_torchdist.cli.diagnose.moment import rounded
from otel_torchdist.cli.diagnose.verdict_result import call_site
from otel_torchdist.judge.verdict.past.post_mortem import stalled_verdict
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.judge.verdict.verdict import Verdict, locate
from otel_torchdist.judge.verdict.wording.calls import describe_frame
from otel_torchdist.judge.verdict.wording.sentence import sentence
from otel_torchdist.model.naming import have, name_ranks
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.model.stacks import Stacks
from otel_torchdist.sources.evidence.findings import ToolFinding, findings_of, outside_of_collectives, stacks_by_rank
from otel_torchdist.sources.evidence.statements import Evidence, Statement
from otel_torchdist.sources.evidence.world import snapshot_of

MAX_SHOWN: Final = 200
"""Findings that a report shows."""
_WIDTH: Final = 12


@dataclass(frozen=True, slots=True)
class TextFindings:
    """What texts say.

    Attributes:
        verdict: The verdict with places; None if they do not suffice for one.
        age_s: How long the first rank had waited; 0 without a verdict.
        silent: Ranks below the highest one that wrote nothing about the operation that timed out.
        findings: Everything else that they say.
        outside: Ranks whose stacks show no operation of torch.distributed, where those of others do.
        inside: Those others.
    """

    verdict: Verdict | None
    age_s: float
    silent: tuple[int, ...]
    findings: tuple[ToolFinding, ...]
    outside: tuple[int, ...]
    inside: tuple[int, ...]

    @property
    def sentence(self) -> str:
        """The verdict as a sentence; '' without one."""
        return sentence(self.verdict, self.age_s) if self.verdict is not None else ""

    @property
    def has_problem(self) -> bool:
        """Whether there is a verdict, or anything says that something has gone wrong."""
        return self.verdict is not None or any(finding.kind.is_failure for finding in self.findings)


def judge_texts(statements: Sequence[Statement], rules: StallRules) -> TextFindings:
    """Judge what texts say.

    Args:
        statements: With ranks as far as they are known.
        rules: Which waits are stalls.
    """
    world = snapshot_of(statements)
    found = stalled_verdict(world, rules) if world is not None else None
    verdict = (
        locate(world, found) if world is not None and found is not None and found.kind.traits.needs_no_silence else None
    )
    group = found.group if found is not None else None
    silent = () if group is None or world is None else tuple(sorted(group.members - world.ranks.keys()))
    outside, inside = outside_of_collectives(statements)
    return TextFindings(
        verdict=verdict,
        age_s=(world.taken_ns - verdict.since_ns) / 1e9 if world is not None and verdict is not None else 0.0,
        silent=silent,
        findings=tuple(findings_of(statements)),
        outside=outside if inside else (),
        inside=inside if outside else (),
    )


@dataclass(frozen=True, slots=True)
class ReadTexts:
    """Texts of other tools that were read from files.

    Attributes:
        said: What they say.
        files: Number of these files.
        unrecognized: Files that no reader recognizes.
    """

    said: TextFindings
    files: int
    unrecognized: tuple[str, ...]

    @property
    def title(self) -> str:
        """The heading over what they say."""
        return f"logs and stacks of other tools, {'1 file' if self.files == 1 else f'{self.files:,} files'}"


def read_texts(evidence: Evidence, rules: StallRules) -> ReadTexts | None:
    """Judge texts that were read from files; None if they say nothing.

    Args:
        evidence: What was read of them.
        rules: Which waits are stalls.
    """
    if not evidence.statements:
        return None
    files = len({one.source.path for one in evidence.statements})
    return ReadTexts(judge_texts(evidence.statements, rules), files, tuple(evidence.unrecognized))


def with_stacks(world: WorldSnapshot, evidence: Evidence) -> WorldSnapshot:
    """Return a snapshot in which ranks have the stacks that other tools have taken, so that verdicts show places."""
    stacks = stacks_by_rank(evidence.statements)
    views = {
        rank: dataclasses.replace(view, stacks=Stacks(world.taken_ns, (stacks[rank],))) if rank in stacks else view
        for rank, view in world.ranks.items()
    }
    return dataclasses.replace(world, ranks=views)


def contradictions(evidence: Evidence, rules: StallRules, verdicts: Sequence[Verdict]) -> list[str]:
    """Return a line if the watchdogs' lines name other ranks than the dumps do.

    Args:
        evidence: What was read of texts.
        rules: Which waits are stalls.
        verdicts: Those on the dumps.
    """
    by_texts = judge_texts(evidence.statements, rules).verdict
    named = sorted({rank for verdict in verdicts for rank in verdict.ranks})
    if by_texts is None or not named or {*by_texts.ranks} <= {*named}:
        return []
    return [
        f"the watchdogs' lines name {name_ranks(by_texts.ranks)}, the dumps {name_ranks(named)}: "
        "they may be of different jobs or moments"
    ]


def lines_of_texts(said: TextFindings) -> Iterator[Text]:
    """Yield the report."""
    if said.verdict is not None:
        yield Text.assemble(("verdict", "bold white on red"), f"  {said.sentence}")
        yield Text("  and    this is what the watchdogs of the ranks have written")
    if said.silent:
        yield Text(f"  and    {name_ranks(said.silent)} {have(said.silent)} written nothing about it", style="yellow")
    if said.outside:
        verb = "is" if len(said.outside) == 1 else "are"
        others = f"{name_ranks(said.inside)} {'is' if len(said.inside) == 1 else 'are'}"
        yield Text.assemble(
            ("stacks", "bold"), f"  {name_ranks(said.outside)} {verb} in no operation of torch.distributed; {others}"
        )
    for finding in said.findings[:MAX_SHOWN]:
        yield _line(finding)
    if len(said.findings) > MAX_SHOWN:
        yield Text(f"and {len(said.findings) - MAX_SHOWN} more; --json shows all")


def _line(finding: ToolFinding) -> Text:
    who = ", ".join([*([name_ranks(finding.ranks)] if finding.ranks else []), *finding.others[:4]]) or "-"
    how = "called in" if finding.is_call else "in"
    frame = f", {how} {describe_frame(finding.frame)}" if finding.frame is not None else ""
    first = ", the first failure that the launcher saw" if finding.is_first else ""
    times = f", {finding.count} times" if finding.count > len(finding.ranks) + len(finding.others) else ""
    return Text.assemble(
        (f"{who:{_WIDTH}}", "bold"), f"  {finding.text}{frame}{first}{times}", (f"  [{finding.source.text}]", "dim")
    )


class TextVerdict(msgspec.Struct, frozen=True):
    """A verdict on what the watchdogs of the ranks have written.

    Attributes:
        kind: As of any verdict.
        ranks: The ranks that it names.
        waiting: The ranks that wait.
        operation: The operation in which they wait.
        sequence: Sequence of that operation.
        group: Name of its group.
        age_s: For how long the first rank had waited.
        sentence: The verdict in a sentence.
        source: `watchdogs`.
    """

    kind: str
    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    operation: str
    sequence: int
    group: str | None
    age_s: float
    sentence: str
    source: str


class StackedRanks(msgspec.Struct, frozen=True):
    """Ranks by what their stacks show.

    Attributes:
        outside: Ranks in no operation of torch.distributed.
        inside: Ranks in one.
    """

    outside: tuple[int, ...]
    inside: tuple[int, ...]


class ToolFindingResult(msgspec.Struct, frozen=True):
    """The same message of some ranks.

    Attributes:
        kind: What it is about.
        ranks: The ranks.
        others: Speakers whose rank is not known: `process 12`, `local rank 3`, …
        text: The message.
        call_site: A line of the job's code that belongs to it.
        source: Where the first of these messages is written.
        count: How many there are.
        first: Whether a launcher observed this failure before all others.
    """

    kind: str
    ranks: tuple[int, ...]
    others: tuple[str, ...]
    text: str
    call_site: CallSite | None
    source: str
    count: int
    first: bool


class TextsResult(msgspec.Struct, frozen=True):
    """What texts of other tools say.

    Attributes:
        verdict: The verdict, if they suffice for one.
        silent: Ranks that wrote nothing about the operation that timed out.
        stacks: Ranks by what their stacks show; null if that is the same for all.
        findings: Everything else.
        unrecognized: Files that no reader recognizes.
    """

    verdict: TextVerdict | None
    silent: tuple[int, ...]
    stacks: StackedRanks | None
    findings: tuple[ToolFindingResult, ...]
    unrecognized: tuple[str, ...]


def texts_result(read: ReadTexts) -> TextsResult:
    """Return the result on texts that were read from files."""
    said = read.said
    return TextsResult(
        verdict=text_verdict(said),
        silent=said.silent,
        stacks=stacked_ranks(said),
        findings=tool_findings(said),
        unrecognized=read.unrecognized,
    )


def text_verdict(said: TextFindings) -> TextVerdict | None:
    """Return the verdict on texts; None if they do not suffice for one."""
    verdict = said.verdict
    if verdict is None:
        return None
    return TextVerdict(
        kind=verdict.kind.value,
        ranks=verdict.ranks,
        waiting=tuple(verdict.waiting),
        operation=verdict.operation,
        sequence=verdict.operation_id.sequence,
        group=verdict.group.label if verdict.group is not None else None,
        age_s=rounded(said.age_s),
        sentence=said.sentence,
        source="watchdogs",
    )


def stacked_ranks(said: TextFindings) -> StackedRanks | None:
    """Return which ranks are inside of operations, by their stacks; None if that is the same for all."""
    return StackedRanks(said.outside, said.inside) if said.outside else None


def tool_findings(said: TextFindings) -> tuple[ToolFindingResult, ...]:
    """Return the results on everything else that texts say."""
    return tuple(map(_tool_finding, said.findings))


def _tool_finding(finding: ToolFinding) -> ToolFindingResult:
    return ToolFindingResult(
        kind=finding.kind.value,
        ranks=finding.ranks,
        others=finding.others,
        text=finding.text,
        call_site=call_site(finding.frame),
        source=finding.source.text,
        count=finding.count,
        first=finding.is_first,
    )
