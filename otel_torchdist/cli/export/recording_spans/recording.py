"""The content of a job's files: findings, and the calls of each rank that become spans.

All calls are too many for one trace: 16 ranks with 2,000 calls each are 32,000 spans, for which Jaeger's response has
46 MB. The newest calls of each rank explain a hang, so they share one trace of at most `MAX_CALLS` calls, unless the
user chooses otherwise. Open calls are always included, however old: verdicts rest on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.model.calls import OperationView
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.ids import imported_run_id
from otel_torchdist.model.snapshot import WorldSnapshot


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of recorded calls.

    Attributes:
        source: The recorder, as in the name of the root span.
        files: Number of files read.
        formats: Distinct versions of the file format, ascending.
        libraries: Distinct versions of the communication library.
        missing: Ranks without a file, ascending.
    """

    source: str
    files: int
    formats: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    missing: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Judgment:
    """A verdict and its wording.

    Attributes:
        verdict: The verdict, with lines of code.
        text: The verdict as a sentence.
    """

    verdict: Verdict
    text: str


@dataclass(frozen=True, slots=True)
class ImportedFindings:
    """The verdicts on the last calls of each rank.

    Attributes:
        provenance: Origin of the calls.
        world: Ranks with a file, at the last moment in the files.
        judgments: The verdicts on that moment, the most important first.
        threshold_ns: Age at which an open operation counts as stalled.
    """

    provenance: Provenance
    world: WorldSnapshot
    judgments: tuple[Judgment, ...]
    threshold_ns: int


DEFAULT_CALLS: Final = 200
"""Default number of calls of each rank."""
MAX_CALLS: Final = 5_000
"""Upper bound on calls of all ranks, unless the user states a number for each."""
MAX_RANKS: Final = 64
"""Upper bound on ranks, unless the user names them. The trace of a stall has a bar for at most as many ranks."""


@dataclass(frozen=True, slots=True)
class WantedCalls:
    """The user's choice of calls.

    Attributes:
        last: Number of newest calls of each rank; None for the default.
        ranks: Ranks; None for the ranks that matter most to the verdict.
    """

    last: int | None = None
    ranks: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class ChosenCalls:
    """The calls that become spans.

    Attributes:
        ranks: Ranks. Each has a file.
        last: Number of newest calls of each rank.
    """

    ranks: frozenset[int]
    last: int

    def of(self, history: RankHistory) -> tuple[OperationView, ...]:
        """Return a rank's newest calls and all open ones, each once; empty for a rank that is not chosen.

        Calls without a time are left out, because they cannot be drawn.
        """
        if history.rank not in self.ranks:
            return ()
        timed = {
            operation.record.number: operation
            for operation in history.operations
            if operation.record.entered_ns + history.wall_offset_ns > 0
        }
        in_order = list(timed.values())
        still_open = [operation for operation in in_order[: -self.last] if operation.record.is_open]
        return (*still_open, *in_order[-self.last :])


def choose(findings: ImportedFindings, wanted: WantedCalls) -> ChosenCalls:
    """Choose ranks and the number of their calls."""
    ranks_with_file = findings.world.ranks
    ranks = _by_interest(findings)[:MAX_RANKS] if wanted.ranks is None else wanted.ranks.intersection(ranks_with_file)
    last = wanted.last or max(min(DEFAULT_CALLS, MAX_CALLS // max(len(ranks), 1)), 1)
    return ChosenCalls(frozenset(ranks), last)


def _by_interest(findings: ImportedFindings) -> Sequence[int]:
    """Order ranks: first those named by a verdict, then those waiting for them, then the others."""
    named = {rank for judgment in findings.judgments for rank in judgment.verdict.ranks}
    waiting = {rank for judgment in findings.judgments for rank in judgment.verdict.waiting}
    return sorted(findings.world.ranks, key=lambda rank: (rank not in named, rank not in waiting, rank))


@dataclass(frozen=True, slots=True)
class RecordedRank:
    """The retained part of one rank's file.

    Attributes:
        rank: Global rank.
        world_size: Number of ranks in the job, or 0 if unknown.
        host: Host name, or '' if unknown.
        wall_offset_ns: Offset from the times of operations to nanoseconds since the epoch.
        lost: Number of calls known to be missing from the file.
        calls: Number of calls in the file.
        digest: Digest of all calls in the file.
        operations: Calls that become spans, in order.
    """

    rank: int
    world_size: int
    host: str
    wall_offset_ns: int
    lost: int
    calls: int
    digest: str
    operations: tuple[OperationView, ...]

    @property
    def omitted(self) -> int:
        """Number of calls that do not become spans."""
        return self.calls - len(self.operations)


@dataclass(frozen=True, slots=True)
class Recording:
    """The retained content of a job's files.

    Attributes:
        findings: Verdicts on the last calls.
        choice: Ranks and calls that become spans.
        ranks: All ranks with a file, ascending.
    """

    findings: ImportedFindings
    choice: ChosenCalls
    ranks: tuple[RecordedRank, ...]

    @property
    def chosen(self) -> tuple[RecordedRank, ...]:
        """Ranks that become spans, ascending."""
        return tuple(rank for rank in self.ranks if rank.rank in self.choice.ranks)

    @property
    def world_size(self) -> int:
        """Number of ranks in the job; 0 if no file states it."""
        return max(rank.world_size for rank in self.ranks)

    @property
    def calls(self) -> int:
        """Number of calls in all files."""
        return sum(rank.calls for rank in self.ranks)

    @property
    def run_id(self) -> int:
        """128 bits derived from the calls alone, not from the files' names, order, format or compression."""
        return imported_run_id(rank.digest for rank in self.ranks)


def recording_of(findings: ImportedFindings, choice: ChosenCalls, histories: Iterable[RankHistory]) -> Recording:
    """Reduce histories to the calls that become spans, one at a time: all calls of a large job take gigabytes."""
    ranks = [_reduced(history, choice) for history in histories]
    return Recording(findings, choice, tuple(sorted(ranks, key=lambda recorded: recorded.rank)))


def _reduced(history: RankHistory, choice: ChosenCalls) -> RecordedRank:
    return RecordedRank(
        rank=history.rank,
        world_size=history.world_size,
        host=history.host,
        wall_offset_ns=history.wall_offset_ns,
        lost=history.lost,
        calls=len(history.operations),
        digest=_digest(history),
        operations=choice.of(history),
    )


def _digest(history: RankHistory) -> str:
    properties = f"{history.rank} {history.host} {history.wall_offset_ns} {history.lost}"
    digest = blake2b(properties.encode(errors="surrogateescape"), digest_size=16)
    for operation in history.operations:
        record = operation.record
        text = f"\0{record.number} {operation.name} {record.sequence} {record.entered_ns} {record.completed_ns}"
        digest.update(text.encode(errors="surrogateescape"))
    return digest.hexdigest()
