"""The diagnosis from texts of other tools: findings, and a verdict if they suffice for one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from otel_torchdist.analysis.statistics.result import CallSite
from otel_torchdist.judge.verdict.past.post_mortem import stalled_verdict
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.judge.verdict.verdict import Verdict, locate
from otel_torchdist.judge.verdict.wording.sentence import sentence
from otel_torchdist.model.rank_state.stacks import Stacks
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.model.text import name_ranks
from otel_torchdist.runs.diagnosis.moment import rounded
from otel_torchdist.runs.diagnosis.verdict_result import call_site
from otel_torchdist.sources.evidence.findings import ToolFinding, findings_of, outside_of_collectives, stacks_by_rank
from otel_torchdist.sources.evidence.statements import Evidence, Statement
from otel_torchdist.sources.evidence.world import snapshot_of


@dataclass(frozen=True, slots=True)
class TextFindings:
    """The diagnosis from texts.

    Attributes:
        verdict: The verdict with lines of code; None if the texts do not suffice for a verdict.
        age_s: Time that the first rank had waited; 0 without a verdict.
        silent: Ranks, up to the highest known rank, that wrote nothing about the operation that timed out.
        findings: All other findings.
        outside: Ranks whose stacks show no operation of torch.distributed, while other ranks' stacks do.
        inside: Ranks whose stacks show such an operation.
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
        """Whether there is a verdict, or a text reports that something has gone wrong."""
        return self.verdict is not None or any(finding.kind.is_failure for finding in self.findings)


def judge_texts(statements: Sequence[Statement], rules: StallRules) -> TextFindings:
    """Judge statements from texts.

    Args:
        statements: Statements, with the ranks that are known.
        rules: Defines a stall.
    """
    world = snapshot_of(statements)
    stall = stalled_verdict(world, rules) if world is not None else None
    verdict = (
        locate(world, stall) if world is not None and stall is not None and stall.kind.traits.needs_no_silence else None
    )
    group = stall.group if stall is not None else None
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
    """Texts of other tools, read from files.

    Attributes:
        judgment: Their diagnosis.
        files: Number of these files.
        unrecognized: Files that no reader recognizes.
    """

    judgment: TextFindings
    files: int
    unrecognized: tuple[str, ...]

    @property
    def title(self) -> str:
        """The heading of the report on these texts."""
        return f"logs and stacks of other tools, {'1 file' if self.files == 1 else f'{self.files:,} files'}"


def read_texts(evidence: Evidence, rules: StallRules) -> ReadTexts | None:
    """Judge texts read from files; returns None if no reader recognizes anything in them.

    Args:
        evidence: Statements from the files.
        rules: Defines a stall.
    """
    if not evidence.statements:
        return None
    files = len({statement.source.path for statement in evidence.statements})
    return ReadTexts(judge_texts(evidence.statements, rules), files, tuple(evidence.unrecognized))


def with_stacks(world: WorldSnapshot, evidence: Evidence) -> WorldSnapshot:
    """Add the stacks taken by other tools to the ranks of a snapshot, so that verdicts show lines of code."""
    stacks = stacks_by_rank(evidence.statements)
    views = {
        rank: dataclasses.replace(view, stacks=Stacks(world.taken_ns, (stacks[rank],))) if rank in stacks else view
        for rank, view in world.ranks.items()
    }
    return dataclasses.replace(world, ranks=views)


def contradictions(evidence: Evidence, rules: StallRules, verdicts: Sequence[Verdict]) -> list[str]:
    """Return a line if the watchdogs' lines name other ranks than the dumps do.

    Args:
        evidence: Statements from texts.
        rules: Defines a stall.
        verdicts: Verdicts on the dumps.
    """
    by_texts = judge_texts(evidence.statements, rules).verdict
    named = sorted({rank for verdict in verdicts for rank in verdict.ranks})
    if by_texts is None or not named or {*by_texts.ranks} <= {*named}:
        return []
    return [
        f"the watchdogs' lines name {name_ranks(by_texts.ranks)}, the dumps {name_ranks(named)}: "
        "they may be of different jobs or moments"
    ]


class TextVerdict(msgspec.Struct, frozen=True):
    """A verdict from lines of the ranks' watchdogs.

    Attributes:
        kind: Kind of the verdict, as in `VerdictResult`.
        ranks: The named ranks.
        waiting: The waiting ranks.
        operation: The operation in which they wait.
        sequence: Sequence of that operation.
        group: Name of its group.
        age_s: Time that the first rank had waited.
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
    """Ranks outside and inside operations, according to their stacks.

    Attributes:
        outside: Ranks in no operation of torch.distributed.
        inside: Ranks in an operation.
    """

    outside: tuple[int, ...]
    inside: tuple[int, ...]


class ToolFindingResult(msgspec.Struct, frozen=True):
    """A message that several ranks may have written.

    Attributes:
        kind: Its topic.
        ranks: Its ranks.
        others: Its writers without a known rank: `process 12`, `local rank 3`, …
        text: The message.
        call_site: A line of the job's code that belongs to it.
        source: File and line of its first occurrence.
        count: Number of its occurrences.
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
    """The diagnosis from texts of other tools.

    Attributes:
        verdict: The verdict, if the texts suffice for one.
        silent: Ranks that wrote nothing about the operation that timed out.
        stacks: Ranks outside and inside operations; null if all are outside, or all inside.
        findings: All other findings.
        unrecognized: Files that no reader recognizes.
    """

    verdict: TextVerdict | None
    silent: tuple[int, ...]
    stacks: StackedRanks | None
    findings: tuple[ToolFindingResult, ...]
    unrecognized: tuple[str, ...]


def texts_result(read: ReadTexts) -> TextsResult:
    """Return the result on texts read from files."""
    judgment = read.judgment
    return TextsResult(
        verdict=text_verdict(judgment),
        silent=judgment.silent,
        stacks=stacked_ranks(judgment),
        findings=tool_findings(judgment),
        unrecognized=read.unrecognized,
    )


def text_verdict(texts: TextFindings) -> TextVerdict | None:
    """Return the verdict on texts; None if they do not suffice for one."""
    verdict = texts.verdict
    if verdict is None:
        return None
    return TextVerdict(
        kind=verdict.kind.value,
        ranks=verdict.ranks,
        waiting=tuple(verdict.waiting),
        operation=verdict.operation,
        sequence=verdict.operation_id.sequence,
        group=verdict.group.label if verdict.group is not None else None,
        age_s=rounded(texts.age_s),
        sentence=texts.sentence,
        source="watchdogs",
    )


def stacked_ranks(texts: TextFindings) -> StackedRanks | None:
    """Return the ranks outside and inside operations by their stacks; None if all are outside, or all inside."""
    return StackedRanks(texts.outside, texts.inside) if texts.outside else None


def tool_findings(texts: TextFindings) -> tuple[ToolFindingResult, ...]:
    """Return the results on all other findings."""
    return tuple(map(_tool_finding, texts.findings))


def _tool_finding(finding: ToolFinding) -> ToolFindingResult:
    return ToolFindingResult(
        kind=finding.kind.value,
        ranks=finding.ranks,
        others=finding.unidentified,
        text=finding.text,
        call_site=call_site(finding.frame),
        source=finding.source.text,
        count=finding.count,
        first=finding.is_first,
    )
