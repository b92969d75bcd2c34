"""What a job that was not recorded has left: dumps of flight recorders and texts of other tools, as one diagnosis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.cli.diagnose.section import Section
from otel_torchdist.flight.condensed import CondensedDump
from otel_torchdist.flight.reading.reader import read_dumps
from otel_torchdist.flight.snapshot import JobMoment, moment_of
from otel_torchdist.verdict.last_moment import LastMoment
from otel_torchdist.verdict.model import Verdict
from otel_torchdist.verdict.post_mortem import roots_of
from otel_torchdist.verdict.rules import StallRules
from otel_torchdist.verdict.wording.sentence import sentence
from otel_torchdist.world.model import RankView

UP_TO: Final = "up to"
AT_LEAST: Final = "at least"


@dataclass(frozen=True, slots=True)
class JudgedDumps:
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
        """How ages are to be read, since no dump says when it was written."""
        return UP_TO if self.moment.is_assumed else AT_LEAST

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
        sections: What texts of other tools say.
        threshold_s: Minimum age in seconds at which an open operation counts as stalled.
        notes: What was left out, and why.
    """

    paths: tuple[Path, ...]
    dumps: JudgedDumps | None
    sections: tuple[Section, ...]
    threshold_s: float
    notes: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to report."""
        return self.dumps is None and not self.sections

    @property
    def has_problem(self) -> bool:
        """Whether there is a verdict, or a text reports a failure."""
        has_verdict = self.dumps is not None and bool(self.dumps.verdicts)
        return has_verdict or any(section.has_problem for section in self.sections)


def diagnose_leftovers(paths: Sequence[Path], rules: StallRules, world_size: int = 0) -> Leftovers:
    """Read whatever lies at some paths, and judge it.

    Args:
        paths: Folders, files and archives.
        rules: What counts as a stall.
        world_size: Ranks of the job, if the user states it; else 0.
    """
    found = read_dumps(paths)
    sections = _sections(found.others, rules)
    notes = found.notes
    if found.others and not sections:
        files = "1 other file" if len(found.others) == 1 else f"{len(found.others):,} other files"
        notes = (*notes, f"{files} that no reader here recognizes, such as {found.others[0]}")
    dumps = _judged(found.dumps, rules, world_size) if found.dumps else None
    return Leftovers(tuple(paths), dumps, sections, rules.threshold_s, notes)


def _sections(files: Sequence[Path], rules: StallRules) -> tuple[Section, ...]:
    """What texts of other tools say; each reader of such texts adds its sections here.

    Args:
        files: Those that are not dumps.
        rules: What counts as a stall.
    """
    del files, rules  # there is no such reader yet
    return ()


def _judged(dumps: tuple[CondensedDump, ...], rules: StallRules, world_size: int) -> JudgedDumps:
    moment = moment_of(dumps, world_size)
    return JudgedDumps(dumps, moment, tuple(roots_of(LastMoment(moment.world, is_now=False, signs={}), rules)))
