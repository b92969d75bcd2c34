"""What a job that was not recorded has left: dumps of flight recorders and texts of other tools, as one diagnosis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.cli.diagnose.moment import ReportedMoment
from otel_torchdist.cli.diagnose.texts import ReadTexts, contradictions, read_texts, with_stacks
from otel_torchdist.evidence.files import read_files
from otel_torchdist.evidence.model import Evidence
from otel_torchdist.flight.history import CondensedDump
from otel_torchdist.flight.reading.reader import read_dumps
from otel_torchdist.flight.snapshot import JobMoment, MomentKind, moment_of
from otel_torchdist.model.snapshot import RankView
from otel_torchdist.verdict.model import Verdict
from otel_torchdist.verdict.past.last_moment import LastMoment
from otel_torchdist.verdict.past.post_mortem import roots_of
from otel_torchdist.verdict.rules import StallRules
from otel_torchdist.verdict.wording.sentence import sentence

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
