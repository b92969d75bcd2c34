"""The results of `diagnose` on texts of other tools and on live processes: structs whose encoding is its JSON."""

from __future__ import annotations

import msgspec

from otel_torchdist.cli.diagnose.moment import rounded
from otel_torchdist.cli.diagnose.texts import ReadTexts, TextFindings
from otel_torchdist.cli.diagnose.verdict_result import call_site
from otel_torchdist.evidence.findings import ToolFinding
from otel_torchdist.statistics.model import CallSite


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
