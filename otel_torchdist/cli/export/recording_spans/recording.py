"""What files hold of one job: what was found in it, and of each rank the calls that become spans.

All calls are too many for one trace: 16 ranks with 2,000 calls each are 32,000 spans, of which Jaeger's answer has
46 MB. What explains a hang are the newest calls of each rank, so they share one trace of at most `MAX_CALLS` calls,
unless the user chooses otherwise. An open call is always among them, however old: verdicts rest on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.model.calls import OperationView
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.naming import imported_run_id
from otel_torchdist.model.snapshot import WorldSnapshot


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where the calls come from.

    Attributes:
        source: What has recorded them, as in the name of the root span.
        files: How many files were read.
        formats: Versions of their format, ascending, each once.
        libraries: Versions of the communication library that they name, each once.
        missing: Ranks of the job that have no file, ascending.
    """

    source: str
    files: int
    formats: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    missing: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, and how it was put into words for people.

    Attributes:
        verdict: The verdict, with places.
        text: Its sentence.
    """

    verdict: Verdict
    text: str


@dataclass(frozen=True, slots=True)
class ImportedFindings:
    """What the last calls of each rank show.

    Attributes:
        provenance: Where they come from.
        world: The ranks that have a file, at the last moment that the files show.
        judgements: The verdicts on that moment, the most important first.
        threshold_ns: The age at which an open operation counts as stalled.
    """

    provenance: Provenance
    world: WorldSnapshot
    judgements: tuple[Judgement, ...]
    threshold_ns: int


USUAL_LAST: Final = 200
"""Calls of one rank."""
MAX_CALLS: Final = 5_000
"""Calls of all ranks, unless the user states a number for each."""
MAX_RANKS: Final = 64
"""Ranks, unless the user names them; as many as have a bar of their own in the trace of a stall."""


@dataclass(frozen=True, slots=True)
class WantedCalls:
    """What the user wants to see.

    Attributes:
        last: How many of the newest calls of each rank; None for the usual number.
        ranks: Which ranks; None for those of interest.
    """

    last: int | None = None
    ranks: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class ChosenCalls:
    """What becomes spans.

    Attributes:
        ranks: The ranks, all of which have a file.
        last: How many calls of each.
    """

    ranks: frozenset[int]
    last: int

    def of(self, history: RankHistory) -> tuple[OperationView, ...]:
        """A rank's newest calls and all that are open, each once; none if it was not chosen.

        Calls whose time is not known are left out, for they cannot be drawn.
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
    """Choose ranks, and how many of their calls."""
    known = findings.world.ranks
    ranks = _of_interest(findings)[:MAX_RANKS] if wanted.ranks is None else wanted.ranks.intersection(known)
    last = wanted.last or max(min(USUAL_LAST, MAX_CALLS // max(len(ranks), 1)), 1)
    return ChosenCalls(frozenset(ranks), last)


def _of_interest(findings: ImportedFindings) -> Sequence[int]:
    """Order ranks: those that a verdict names, then those that wait for them, then the others."""
    named = {rank for one in findings.judgements for rank in one.verdict.ranks}
    waiting = {rank for one in findings.judgements for rank in one.verdict.waiting}
    return sorted(findings.world.ranks, key=lambda rank: (rank not in named, rank not in waiting, rank))


@dataclass(frozen=True, slots=True)
class RecordedRank:
    """What is kept of one rank's file.

    Attributes:
        rank: Global rank.
        world_size: Ranks of the job, as far as that is known; else 0.
        host: Host name, or '' if the file does not state it.
        wall_offset_ns: Add it to the times of operations for nanoseconds since the epoch.
        lost: How many calls are known to be missing in the file.
        calls: How many calls the file holds.
        digest: Of all of them.
        operations: Those that become spans, in order.
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
        """How many calls become no spans."""
        return self.calls - len(self.operations)


@dataclass(frozen=True, slots=True)
class Recording:
    """What files hold of one job.

    Attributes:
        findings: What was found in it.
        choice: Which ranks and calls become spans.
        ranks: All ranks that have a file, ascending.
    """

    findings: ImportedFindings
    choice: ChosenCalls
    ranks: tuple[RecordedRank, ...]

    @property
    def chosen(self) -> tuple[RecordedRank, ...]:
        """The ranks that become spans, ascending."""
        return tuple(rank for rank in self.ranks if rank.rank in self.choice.ranks)

    @property
    def world_size(self) -> int:
        """Ranks of the job, as far as that is known."""
        return max(rank.world_size for rank in self.ranks)

    @property
    def calls(self) -> int:
        """How many calls the files hold."""
        return sum(rank.calls for rank in self.ranks)

    @property
    def run_id(self) -> int:
        """128 bits that depend on nothing but the calls: not on the files' names, order, format or compression."""
        return imported_run_id(rank.digest for rank in self.ranks)


def recording_of(findings: ImportedFindings, choice: ChosenCalls, histories: Iterable[RankHistory]) -> Recording:
    """Reduce histories to what becomes spans, one after the other: all calls of a large job take gigabytes."""
    ranks = [_reduced(history, choice) for history in histories]
    return Recording(findings, choice, tuple(sorted(ranks, key=lambda one: one.rank)))


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
    about = f"{history.rank} {history.host} {history.wall_offset_ns} {history.lost}"
    digest = blake2b(about.encode(errors="surrogateescape"), digest_size=16)
    for operation in history.operations:
        record = operation.record
        text = f"\0{record.number} {operation.name} {record.sequence} {record.entered_ns} {record.completed_ns}"
        digest.update(text.encode(errors="surrogateescape"))
    return digest.hexdigest()
