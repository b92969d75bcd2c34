"""What files hold of one job, and what was found in it."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from otel_torchdist.history.model import RankHistory
from otel_torchdist.naming import imported_run_id
from otel_torchdist.verdict.model import Verdict
from otel_torchdist.world.model import WorldSnapshot


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
class Recording:
    """What files hold of one job.

    Attributes:
        provenance: Where it comes from.
        histories: All recorded calls of each rank, by ascending rank.
        world: Its ranks at the last moment that the files show.
        judgements: The verdicts on that moment, the most important first.
        threshold_ns: The age at which an open operation counts as stalled.
    """

    provenance: Provenance
    histories: tuple[RankHistory, ...]
    world: WorldSnapshot
    judgements: tuple[Judgement, ...]
    threshold_ns: int

    @property
    def calls(self) -> int:
        """How many calls the files hold."""
        return sum(len(history.operations) for history in self.histories)

    @property
    def run_id(self) -> int:
        """128 bits that depend on nothing but the calls: not on the files' names, order, format or compression."""
        return imported_run_id(map(_digest, self.histories))


def _digest(history: RankHistory) -> str:
    about = f"{history.rank} {history.world_size} {history.host} {history.wall_offset_ns} {history.lost}"
    digest = blake2b(about.encode(errors="surrogateescape"), digest_size=16)
    for operation in history.operations:
        record = operation.record
        text = f"\0{record.number} {operation.name} {record.sequence} {record.entered_ns} {record.completed_ns}"
        digest.update(text.encode(errors="surrogateescape"))
    return digest.hexdigest()
