"""The diagnosis of a job that was not recorded, from dumps of flight recorders and texts of other tools."""

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
from otel_torchdist.cli.output.progress import progress
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
from otel_torchdist.sources.flight.reading.sources import count_files
from otel_torchdist.sources.flight.snapshot import JobMoment, MomentKind, moment_of

BOUNDS: Final = {
    MomentKind.FIRST_TIMEOUT: "up to",
    MomentKind.NEWEST_TIME: "at least",
    MomentKind.DUMPS: "",
}
NO_EVIDENCE: Final = Evidence()


@dataclass(frozen=True, slots=True)
class JudgedDumps(ReportedMoment):
    """The dumps of a job and the verdicts on them.

    Attributes:
        dumps: One for each rank, ascending.
        moment: The job according to the dumps.
        verdicts: The verdict with lines of code, and others of its kind that name other ranks; empty without a stall.
    """

    dumps: tuple[CondensedDump, ...]
    moment: JobMoment
    verdicts: tuple[Verdict, ...]

    @property
    def is_now(self) -> bool:
        """False: the moment of dumps is always past."""
        return False

    @property
    def moment_ns(self) -> int:
        """The moment that ages refer to, in nanoseconds since the epoch."""
        return self.moment.world.taken_ns

    @property
    def bound(self) -> str:
        """`up to` or `at least` if ages are only bounds; '' if exact. PyTorch's dumps do not state their time."""
        return BOUNDS[self.moment.kind]

    @property
    def ranks(self) -> list[RankView]:
        """Ranks with a dump, ascending."""
        return self.moment.world.in_order

    def before_s(self, monotonic_ns: int) -> float:
        """Return the seconds from a time to the moment."""
        return max(self.moment_ns - monotonic_ns, 0) / 1e9

    def wall_ns(self, monotonic_ns: int) -> int:
        """Return a time unchanged: times in dumps are nanoseconds since the epoch."""
        return monotonic_ns

    def age_ns(self, verdict: Verdict) -> int:
        """Return the time that the first rank of a verdict had waited."""
        return max(self.moment_ns - verdict.since_ns, 0)

    def text_of(self, verdict: Verdict) -> str:
        """Return a verdict as a sentence."""
        return sentence(verdict, self.age_ns(verdict) / 1e9, self.bound)


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The content of paths that a user named.

    Attributes:
        paths: The paths.
        dumps: Dumps of flight recorders; None if there are none.
        texts: Texts of other tools; None if there are none.
        threshold_s: Minimum age in seconds at which an open operation counts as stalled.
        notes: Reasons for parts that were left out.
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
        return has_verdict or (self.texts is not None and self.texts.judgement.has_problem)


def diagnose_leftovers(paths: Sequence[Path], rules: StallRules, world_size: int = 0) -> Leftovers:
    """Read all files at paths, and judge them.

    Args:
        paths: Folders, files and archives.
        rules: Defines a stall.
        world_size: Number of ranks given by the user, or 0.
    """
    with progress("Reading dumps", "dumps", count_files(paths)) as advance:
        read = read_dumps(paths, advance=advance)
    evidence = read_files(read.others)
    notes = [*read.notes, *evidence.warnings]
    if evidence.unrecognized:
        count = len(evidence.unrecognized)
        files = "1 other file" if count == 1 else f"{count:,} other files"
        notes.append(f"{files} that no reader recognizes, such as {evidence.unrecognized[0]}")
    dumps = judged(read.dumps, rules, world_size, evidence) if read.dumps else None
    if dumps is not None:
        notes += contradictions(evidence, rules, dumps.verdicts)
    return Leftovers(tuple(paths), dumps, read_texts(evidence, rules), rules.threshold_s, tuple(notes))


def judged(
    dumps: tuple[CondensedDump, ...], rules: StallRules, world_size: int, evidence: Evidence = NO_EVIDENCE
) -> JudgedDumps:
    """Judge the dumps of a job.

    Args:
        dumps: One for each rank; at least one.
        rules: Defines a stall.
        world_size: Number of ranks in the job, or 0 if unknown.
        evidence: Stacks of ranks, from which verdicts take lines of code.
    """
    moment = moment_of(dumps, world_size)
    world = with_stacks(moment.world, evidence)
    return JudgedDumps(dumps, moment, tuple(roots_of(LastMoment(world, is_now=False, signs={}), rules)))


SHOWN_EACH: Final = 8
"""Largest number of ranks that a report shows separately."""
MOMENTS: Final = {
    MomentKind.FIRST_TIMEOUT: "when the first timeout runs out: the time of the dumps is not recorded",
    MomentKind.NEWEST_TIME: "the newest time in them: the time of the dumps is not recorded",
    MomentKind.DUMPS: "the end of what they record",
}


def print_leftovers(leftovers: Leftovers, console: Console) -> None:
    """Print a diagnosis."""
    for line in lines_of(leftovers):
        console.print(line, soft_wrap=True, highlight=False)


def lines_of(leftovers: Leftovers) -> Iterator[Text]:
    """Yield the report."""
    if leftovers.dumps is not None:
        yield from _of_dumps(leftovers.dumps, leftovers.threshold_s)
    if leftovers.texts is None:
        return
    if leftovers.dumps is not None:
        yield Text()
    yield Text(leftovers.texts.title, style="bold")
    yield from lines_of_texts(leftovers.texts.judgement)


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
    libraries = sorted(
        {called_name(call.entry.profiling_name).library for condensed in dumps.dumps for call in condensed.calls}
    )
    versions = sorted({condensed.dump.version for condensed in dumps.dumps})
    built = sorted({condensed.dump.library_version for condensed in dumps.dumps} - {""})
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
    """Describe the first of several ranks in the same state."""
    view = alike[0]
    if len(alike) > 1:
        ranks = [rank.rank for rank in alike]
        yield Text.assemble((name_ranks(ranks), "bold"), f"  {len(ranks)} ranks do the same; the longest wait:")
    nothing = "" if view.open else "  nothing is open"
    yield Text.assemble((f"rank {view.rank}", "bold"), nothing)
    yield from operation_lines(dumps, view.open, view.last)


def _crowds(dumps: JudgedDumps) -> list[list[RankView]]:
    """Group ranks in the same state. Groups that verdicts name come first."""
    named = {rank for verdict in dumps.verdicts for rank in verdict.ranks}
    ordered = sorted(dumps.ranks, key=lambda view: (view.rank not in named, view.rank))
    if len(ordered) <= SHOWN_EACH:
        return [[view] for view in ordered]
    groups: dict[Hashable, list[RankView]] = {}
    for view in ordered:
        last = _shown_alike(view.last) if view.last is not None and not view.open else None
        groups.setdefault((view.rank in named, tuple(map(_shown_alike, view.open)), last), []).append(view)
    return [sorted(alike, key=_waiting_since) for alike in groups.values()]


def _shown_alike(operation: OperationView) -> Hashable:
    label = operation.group.label if operation.group is not None else ""
    return operation.name, operation.operation_id.sequence, label, operation.waiting_since_ns is None


def _waiting_since(view: RankView) -> tuple[int, int]:
    since = [operation.waiting_since_ns for operation in view.open if operation.waiting_since_ns is not None]
    return min(since, default=1 << 63), view.rank
