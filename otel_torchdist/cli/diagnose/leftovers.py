"""What a job that was not recorded has left: dumps of flight recorders and texts of other tools, as one diagnosis."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from otel_torchdist.cli.diagnose.moment import ReportedMoment
from otel_torchdist.cli.diagnose.report import operation_lines
from otel_torchdist.cli.diagnose.texts import ReadTexts, contradictions, lines_of_texts, read_texts, with_stacks
from otel_torchdist.cli.output.text import day_and_time
from otel_torchdist.judge.verdict.past.last_moment import LastMoment
from otel_torchdist.judge.verdict.past.post_mortem import roots_of
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.judge.verdict.wording.sentence import sentence
from otel_torchdist.model.calls import OperationView
from otel_torchdist.model.naming import have, name_ranks
from otel_torchdist.model.snapshot import RankView
from otel_torchdist.sources.evidence.files import read_files
from otel_torchdist.sources.evidence.statements import Evidence
from otel_torchdist.sources.flight.dump import called_name
from otel_torchdist.sources.flight.history import CondensedDump
from otel_torchdist.sources.flight.reading.reader import read_dumps
from otel_torchdist.sources.flight.snapshot import JobMoment, MomentKind, moment_of

BOUNDS: Final = {
    MomentKind.FIRST_TIMEOUT: "up to",
    MomentKind.NEWEST_TIME: "at least",
    MomentKind.DUMPS: "",
}
NO_EVIDENCE: Final = Evidence()


@dataclass(frozen=True, slots=True)
class JudgedDumps(ReportedMoment):
    """The dumps of a job, and the verdicts on it.

    Attributes:
        dumps: One for each rank, ascending.
        moment: The job as they show it.
        verdicts: The verdict with places, and others of its kind that name other ranks; empty if nothing had stalled.
    """

    dumps: tuple[CondensedDump, ...]
    moment: JobMoment
    verdicts: tuple[Verdict, ...]

    @property
    def is_now(self) -> bool:
        """Whether the moment is now: never, for dumps."""
        return False

    @property
    def moment_ns(self) -> int:
        """The moment that ages refer to, since the epoch."""
        return self.moment.world.taken_ns

    @property
    def bound(self) -> str:
        """How ages are to be read, since PyTorch's dumps do not say when they were written; '' if they are exact."""
        return BOUNDS[self.moment.kind]

    @property
    def ranks(self) -> list[RankView]:
        """The ranks that have a dump, ascending."""
        return self.moment.world.in_order

    def before_s(self, monotonic_ns: int) -> float:
        """Return how long before the moment a time was, in seconds."""
        return max(self.moment_ns - monotonic_ns, 0) / 1e9

    def wall_ns(self, monotonic_ns: int) -> int:
        """Return a time as nanoseconds since the epoch, which it is already."""
        return monotonic_ns

    def age_ns(self, verdict: Verdict) -> int:
        """How long the first rank of a verdict had waited."""
        return max(self.moment_ns - verdict.since_ns, 0)

    def text_of(self, verdict: Verdict) -> str:
        """A verdict as a sentence."""
        return sentence(verdict, self.age_ns(verdict) / 1e9, self.bound)


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What was found at the paths that a user named.

    Attributes:
        paths: Those paths.
        dumps: Dumps of flight recorders; None if there are none.
        texts: What texts of other tools say; None if there are none.
        threshold_s: Minimum age in seconds at which an open operation counts as stalled.
        notes: What was left out, and why.
    """

    paths: tuple[Path, ...]
    dumps: JudgedDumps | None
    texts: ReadTexts | None
    threshold_s: float
    notes: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to report."""
        return self.dumps is None and self.texts is None

    @property
    def has_problem(self) -> bool:
        """Whether there is a verdict, or a text reports a failure."""
        has_verdict = self.dumps is not None and bool(self.dumps.verdicts)
        return has_verdict or (self.texts is not None and self.texts.said.has_problem)


def diagnose_leftovers(paths: Sequence[Path], rules: StallRules, world_size: int = 0) -> Leftovers:
    """Read whatever lies at some paths, and judge it.

    Args:
        paths: Folders, files and archives.
        rules: What counts as a stall.
        world_size: Ranks of the job, if the user states it; else 0.
    """
    found = read_dumps(paths)
    evidence = read_files(found.others)
    notes = [*found.notes, *evidence.warnings]
    if evidence.unrecognized:
        count = len(evidence.unrecognized)
        files = "1 other file" if count == 1 else f"{count:,} other files"
        notes.append(f"{files} that no reader here recognizes, such as {evidence.unrecognized[0]}")
    dumps = judged(found.dumps, rules, world_size, evidence) if found.dumps else None
    if dumps is not None:
        notes += contradictions(evidence, rules, dumps.verdicts)
    return Leftovers(tuple(paths), dumps, read_texts(evidence, rules), rules.threshold_s, tuple(notes))


def judged(
    dumps: tuple[CondensedDump, ...], rules: StallRules, world_size: int, evidence: Evidence = NO_EVIDENCE
) -> JudgedDumps:
    """Judge dumps of a job.

    Args:
        dumps: One for each rank; at least one.
        rules: What counts as a stall.
        world_size: Ranks of the job, if that is known; else 0.
        evidence: Stacks of ranks, from which verdicts take places.
    """
    moment = moment_of(dumps, world_size)
    world = with_stacks(moment.world, evidence)
    return JudgedDumps(dumps, moment, tuple(roots_of(LastMoment(world, is_now=False, signs={}), rules)))


SHOWN_EACH: Final = 8
"""A report on at most this many ranks shows each of them separately."""
MOMENTS: Final = {
    MomentKind.FIRST_TIMEOUT: "when the first timeout runs out: the time of the dumps is not recorded",
    MomentKind.NEWEST_TIME: "the newest time in them: the time of the dumps is not recorded",
    MomentKind.DUMPS: "the end of what they record",
}


def print_leftovers(found: Leftovers, console: Console) -> None:
    """Print a diagnosis."""
    for line in lines_of(found):
        console.print(line, soft_wrap=True, highlight=False)


def lines_of(found: Leftovers) -> Iterator[Text]:
    """Yield the report."""
    if found.dumps is not None:
        yield from _of_dumps(found.dumps, found.threshold_s)
    if found.texts is None:
        return
    if found.dumps is not None:
        yield Text()
    yield Text(found.texts.title, style="bold")
    yield from lines_of_texts(found.texts.said)


def _of_dumps(dumps: JudgedDumps, threshold_s: float) -> Iterator[Text]:
    yield from _heading(dumps)
    yield Text()
    yield from _verdicts(dumps, threshold_s)
    for alike in _crowds(dumps):
        yield Text()
        yield from _rank(dumps, alike)


def _heading(dumps: JudgedDumps) -> Iterator[Text]:
    unseen, size = dumps.moment.unseen, dumps.moment.world_size
    if unseen:
        yield Text(f"{name_ranks(unseen)} {have(unseen)} no dump here", style="bold yellow")
    yield Text.assemble(
        ("dumps of the flight recorder", "bold"), f", {_kind(dumps)}, of {len(dumps.dumps)} of {size} ranks"
    )
    yield Text(f"as of {day_and_time(dumps.moment_ns)}, {MOMENTS[dumps.moment.kind]}")


def _kind(dumps: JudgedDumps) -> str:
    libraries = sorted({called_name(call.entry.profiling_name).library for one in dumps.dumps for call in one.calls})
    versions = sorted({one.dump.version for one in dumps.dumps})
    built = sorted({one.dump.library_version for one in dumps.dumps} - {""})
    formats = ", ".join(f"{major}.{minor}" for major, minor in versions)
    return f"{' '.join([*libraries, *built]) or 'no calls'}, format {formats}"


def _verdicts(dumps: JudgedDumps, threshold_s: float) -> Iterator[Text]:
    if not dumps.verdicts:
        yield Text.assemble(("no verdict", "bold"), f"  no operation was open for {threshold_s:g} s")
        return
    for nth, verdict in enumerate(dumps.verdicts):
        style = "bold white on red"
        yield Text.assemble(("verdict", style) if not nth else ("  also ", style), f"  {dumps.text_of(verdict)}")


def _rank(dumps: JudgedDumps, alike: Sequence[RankView]) -> Iterator[Text]:
    """Describe the first of several ranks that do the same."""
    view = alike[0]
    if len(alike) > 1:
        ranks = [one.rank for one in alike]
        yield Text.assemble((name_ranks(ranks), "bold"), f"  {len(ranks)} ranks do the same; the longest wait:")
    nothing = "" if view.open else "  nothing is open"
    yield Text.assemble((f"rank {view.rank}", "bold"), nothing)
    yield from operation_lines(dumps, view.open, view.last)


def _crowds(dumps: JudgedDumps) -> list[list[RankView]]:
    """Group ranks that do the same; those that verdicts name come first."""
    named = {rank for verdict in dumps.verdicts for rank in verdict.ranks}
    ordered = sorted(dumps.ranks, key=lambda view: (view.rank not in named, view.rank))
    if len(ordered) <= SHOWN_EACH:
        return [[view] for view in ordered]
    found: dict[Hashable, list[RankView]] = {}
    for view in ordered:
        last = _shown_alike(view.last) if view.last is not None and not view.open else None
        found.setdefault((view.rank in named, tuple(map(_shown_alike, view.open)), last), []).append(view)
    return [sorted(alike, key=_waiting_since) for alike in found.values()]


def _shown_alike(operation: OperationView) -> Hashable:
    label = operation.group.label if operation.group is not None else ""
    return operation.name, operation.operation_id.sequence, label, operation.waiting_since_ns is None


def _waiting_since(view: RankView) -> tuple[int, int]:
    since = [one.waiting_since_ns for one in view.open if one.waiting_since_ns is not None]
    return min(since, default=1 << 63), view.rank
