"""The diagnosis of a job that was not recorded, from dumps of flight recorders and texts of other tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.judge.verdict.past.last_moment import LastMoment
from otel_torchdist.judge.verdict.past.post_mortem import roots_of
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.judge.verdict.wording.sentence import describe_verdict, sentence
from otel_torchdist.model.snapshot import RankView
from otel_torchdist.runs.diagnosis.moment import ReportedMoment
from otel_torchdist.runs.diagnosis.texts import ReadTexts, contradictions, read_texts, with_stacks
from otel_torchdist.sources.evidence.files import read_files
from otel_torchdist.sources.evidence.statements import Evidence
from otel_torchdist.sources.flight.history import CondensedDump
from otel_torchdist.sources.flight.reading.reader import read_dumps
from otel_torchdist.sources.flight.reading.sources import count_files
from otel_torchdist.sources.flight.snapshot import JobMoment, MomentKind, moment_of
from otel_torchdist.system.progress import progress

AGE_BOUNDS: Final = {
    MomentKind.FIRST_TIMEOUT: "up to",
    MomentKind.NEWEST_TIME: "at least",
    MomentKind.DUMPS: "",
}
"""What the age of an operation means, by the kind of the moment that it refers to."""
NO_EVIDENCE: Final = Evidence()


@dataclass(frozen=True, slots=True)
class JudgedDumps(ReportedMoment):
    """The dumps of a job and the verdicts on them.

    Attributes:
        dumps: One for each rank, ascending.
        moment: The state of the job according to the dumps.
        verdicts: The verdict with lines of code, then verdicts of the same kind on other ranks; empty without a stall.
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
        return AGE_BOUNDS[self.moment.kind]

    @property
    def ranks(self) -> list[RankView]:
        """Ranks with a dump, ascending."""
        return self.moment.world.in_order

    def seconds_since(self, monotonic_ns: int) -> float:
        """Return the seconds from a time to the moment."""
        return max(self.moment_ns - monotonic_ns, 0) / 1e9

    def wall_ns(self, monotonic_ns: int) -> int:
        """Return a time unchanged: times in dumps are nanoseconds since the epoch."""
        return monotonic_ns

    def age_ns(self, verdict: Verdict) -> int:
        """Return the time that the first rank of a verdict had waited."""
        return max(self.moment_ns - verdict.since_ns, 0)

    def text_of(self, verdict: Verdict) -> str:
        """Return a verdict as a sentence, with the next step."""
        return sentence(verdict, self.age_ns(verdict) / 1e9, self.bound)

    def description_of(self, verdict: Verdict) -> str:
        """Return a verdict as a sentence, without the next step."""
        return describe_verdict(verdict, self.age_ns(verdict) / 1e9, self.bound)


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The content of the files at the paths that the user named.

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
        return has_verdict or (self.texts is not None and self.texts.judgment.has_problem)


def diagnose_leftovers(paths: Sequence[Path], rules: StallRules, world_size: int = 0) -> Leftovers:
    """Read all files at paths, and judge them.

    Args:
        paths: Folders, files and archives.
        rules: Defines a stall.
        world_size: Number of ranks given by the user, or 0.
    """
    with progress("Reading dumps", "dumps", count_files(paths)) as advance:
        read = read_dumps(paths, advance=advance)
    evidence = read_files(read.other_files)
    notes = [*read.notes, *evidence.warnings]
    if evidence.unrecognized:
        count = len(evidence.unrecognized)
        files = "1 other file" if count == 1 else f"{count:,} other files"
        notes.append(f"{files} that no reader recognizes, such as {evidence.unrecognized[0]}")
    dumps = judge_dumps(read.dumps, rules, world_size, evidence) if read.dumps else None
    if dumps is not None:
        notes += contradictions(evidence, rules, dumps.verdicts)
    return Leftovers(tuple(paths), dumps, read_texts(evidence, rules), rules.threshold_s, tuple(notes))


def judge_dumps(
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
