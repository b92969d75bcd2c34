"""What dumps of a job show of its last moment, and where they come from."""

from __future__ import annotations

from dataclasses import dataclass

from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.verdict.model import Verdict


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
class Findings:
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
