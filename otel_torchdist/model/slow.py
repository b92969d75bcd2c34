"""What makes the steps of a run longer, as the critical path across its ranks shows it."""

from __future__ import annotations

from dataclasses import dataclass

from otel_torchdist.model.finding_kinds import FindingKind
from otel_torchdist.model.names import CallSiteName


@dataclass(frozen=True, slots=True)
class SlowPart:
    """A rank, a node or a stage of a pipeline without which steps would be notably shorter.

    Attributes:
        kind: What it is: `SLOW_RANK`, `SLOW_NODE` or `SLOW_STAGE`.
        ranks: Global ranks that belong to it, ascending.
        operation: The operation before which it computes longer than its peers; '' if there are several.
        group: Key of that operation's group; '' if there are several.
        call_site: The line of that operation; None if there are several, or it is not known.
        excess_s: Seconds for which it computes longer in each step.
        gain_s: Seconds by which a step would be shorter at most.
        step_s: Median length of a step in seconds.
        steps: Number of steps that this is based on.
        compared: Ranks whose calls were compared, ascending.
        text: All of this as a sentence.
    """

    kind: FindingKind
    ranks: tuple[int, ...]
    operation: str
    group: str
    call_site: CallSiteName | None
    excess_s: float
    gain_s: float
    step_s: float
    steps: int
    compared: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Gain:
    """What a step would be shorter at most without one cause.

    Attributes:
        cause: Its kind: `line`, `rank`, `node`, `stage`, `transfer`.
        ranks: The ranks concerned; none for a transfer.
        operation: The operation that they compute before, or that transfers; '' if there are several.
        seconds: The gain.
    """

    cause: str
    ranks: tuple[int, ...]
    operation: str
    seconds: float


@dataclass(frozen=True, slots=True)
class PathLengths:
    """The critical path of an average steady step, in seconds.

    Attributes:
        kinds: Its length, by what happens on it: `computing`, `transfer`.
        ranks: How long ranks compute on it, those that do so longest.
        gains: What would make steps shorter, the greatest gain first.
    """

    kinds: dict[str, float]
    ranks: dict[int, float]
    gains: tuple[Gain, ...]
