"""What is reported of findings, as data: found, gone, or measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from otel_torchdist.model.calls import GroupView
from otel_torchdist.model.incident import Incident
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.stall.findings.checkpoints import SaveFailed
from otel_torchdist.stall.findings.remote_calls import TroubledCalls
from otel_torchdist.stall.findings.shared_groups import GroupShared
from otel_torchdist.stall.findings.slow import PathLengths, SlowPart
from otel_torchdist.stall.findings.stragglers import Lateness, Straggler
from otel_torchdist.stall.findings.values import Diverged, NonFinite
from otel_torchdist.verdict.idle import Idle
from otel_torchdist.world.mismatch import Mismatch


@dataclass(frozen=True, slots=True)
class MismatchFound:
    """Ranks have made different calls at the same position of a group, and nothing stalls.

    Attributes:
        incident: Names its trace.
        mismatch: What they disagree about.
        group: The group; None when it is not known.
        world: The snapshot.
    """

    incident: Incident
    mismatch: Mismatch
    group: GroupView | None
    world: WorldSnapshot


@dataclass(frozen=True, slots=True)
class StragglerFound:
    """A rank repeatedly comes last.

    Attributes:
        incident: Names its trace.
        straggler: The rank, and what the others lose.
        world: The snapshot.
    """

    incident: Incident
    straggler: Straggler
    world: WorldSnapshot


@dataclass(frozen=True, slots=True)
class StragglerGone:
    """A rank is no longer a straggler.

    Attributes:
        run: 128-bit id.
        group: Key of the group.
        rank: The rank.
    """

    run: int
    group: str
    rank: int


@dataclass(frozen=True, slots=True)
class ArrivalsCompared:
    """Which ranks came last in some calls.

    Attributes:
        run: 128-bit id.
        lateness: One entry per group.
    """

    run: int
    lateness: tuple[Lateness, ...]


@dataclass(frozen=True, slots=True)
class PathMeasured:
    """The critical path of the newest steps.

    Attributes:
        run: 128-bit id.
        lengths: Its lengths.
    """

    run: int
    lengths: PathLengths


@dataclass(frozen=True, slots=True)
class SlowFound:
    """A rank, a node or a stage of a pipeline makes steps longer.

    Attributes:
        incident: Names its trace.
        part: What is slow, and what it costs.
        world: The snapshot.
    """

    incident: Incident
    part: SlowPart
    world: WorldSnapshot


@dataclass(frozen=True, slots=True)
class SlowGone:
    """What was slow is not any more.

    Attributes:
        run: 128-bit id.
        part: As it was reported.
    """

    run: int
    part: SlowPart


@dataclass(frozen=True, slots=True)
class CallsStuck:
    """Remote procedure calls cannot go on.

    Attributes:
        incident: Names its trace.
        calls: Which, and why.
        world: The snapshot.
    """

    incident: Incident
    calls: TroubledCalls
    world: WorldSnapshot


@dataclass(frozen=True, slots=True)
class CallsGoOn:
    """They can go on, or have ended.

    Attributes:
        run: 128-bit id.
        calls: As they were reported.
    """

    run: int
    calls: TroubledCalls


@dataclass(frozen=True, slots=True)
class ValuesFound:
    """Values that are not finite, or outputs that differ where they must be equal.

    Attributes:
        incident: Names its trace.
        values: What was found.
        world: The snapshot.
    """

    incident: Incident
    values: NonFinite | Diverged
    world: WorldSnapshot


@dataclass(frozen=True, slots=True)
class ProblemFound:
    """A checkpoint that could not be saved, or a group that two threads use at the same time.

    Attributes:
        incident: Names its trace.
        problem: What was found.
        world: The snapshot.
    """

    incident: Incident
    problem: SaveFailed | GroupShared
    world: WorldSnapshot


@dataclass(frozen=True, slots=True)
class IdleFound:
    """A whole job stands still outside of operations.

    Attributes:
        incident: Names its trace.
        idle: Where the ranks stand, and since when.
        world: The snapshot.
    """

    incident: Incident
    idle: Idle
    world: WorldSnapshot


@dataclass(frozen=True, slots=True)
class IdleOver:
    """It goes on, or has ended.

    Attributes:
        run: 128-bit id.
        idle: As it was reported.
    """

    run: int
    idle: Idle


Finding: TypeAlias = MismatchFound | StragglerFound | SlowFound | ValuesFound | ProblemFound | CallsStuck | IdleFound
FINDINGS: Final = (MismatchFound, StragglerFound, SlowFound, ValuesFound, ProblemFound, CallsStuck, IdleFound)
FindingGone: TypeAlias = StragglerGone | SlowGone | CallsGoOn | IdleOver
FindingEvent: TypeAlias = Finding | FindingGone | ArrivalsCompared | PathMeasured
