"""What files hold of one job: what was found in it, and of each rank the calls that become spans."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

from otel_torchdist.imported.findings import Findings
from otel_torchdist.imported.selection import Choice
from otel_torchdist.model.calls import OperationView
from otel_torchdist.model.history import RankHistory
from otel_torchdist.naming import imported_run_id


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

    findings: Findings
    choice: Choice
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


def recording_of(findings: Findings, choice: Choice, histories: Iterable[RankHistory]) -> Recording:
    """Reduce histories to what becomes spans, one after the other: all calls of a large job take gigabytes."""
    ranks = [_reduced(history, choice) for history in histories]
    return Recording(findings, choice, tuple(sorted(ranks, key=lambda one: one.rank)))


def _reduced(history: RankHistory, choice: Choice) -> RecordedRank:
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
