"""The critical path of an average step as JSON."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from otel_torchdist.analysis.critical_path.critical_path import CauseKind, CriticalPath, PathKind
from otel_torchdist.analysis.critical_path.timelines import Label
from otel_torchdist.analysis.critical_path.wording import describe_cause, describe_doing, describe_outlier
from otel_torchdist.judge.verdict.wording.calls import describe_frame
from otel_torchdist.model.activity_kinds import TimeKind


class PathCall(msgspec.Struct, frozen=True):
    """The calls of one line of the program in one group.

    Attributes:
        operation: `all_reduce`, `send`, …
        group: Key of the process group; null if unknown.
        group_name: Name of the group in sentences.
        function: The calling function; null if the call site is unknown.
        file: Path of the function's file.
        line: Number of the line.
        where: The call site in words, such as `forward at model.py:88`.
    """

    operation: str
    group: str | None
    group_name: str | None
    function: str | None
    file: str | None
    line: int | None
    where: str | None


class LeftOutStep(msgspec.Struct, frozen=True):
    """An outlier: a step that took more than twice the median and is not among the steady steps.

    Attributes:
        step: Number of the step.
        ns: Duration of the step.
        text: The longest part of the step, as a sentence.
    """

    step: int | None
    ns: int
    text: str


class PathSteps(msgspec.Struct, frozen=True):
    """The steady steps that the path goes through.

    Attributes:
        first: The first step; null if no steps are recorded and all calls count as one.
        last: The last step; null if no steps are recorded.
        count: Number of steps.
        unsteady: Number of steps that were left out because they took more than twice the median.
        median_ns: Median duration.
        longest: The longest steps left out.
    """

    first: int | None
    last: int | None
    count: int
    unsteady: int
    median_ns: int
    longest: tuple[LeftOutStep, ...]


class PathLength(msgspec.Struct, frozen=True):
    """The pieces of the path of one kind, rank and call.

    Attributes:
        kind: `computing` or `transfer`.
        rank: Global rank.
        call: The call that follows the computing, or the call that transfers; null if the end of a step follows.
        ns: Length of the pieces in an average step.
        spent: Nanoseconds of the computing by kind of time: `data`, `checkpoint`, `optimizer`, `backward`,
            `remote call`, `computing`.
        doing: The same in words; empty for transfers.
    """

    kind: PathKind
    rank: int
    call: PathCall | None
    ns: int
    spent: Mapping[str, int]
    doing: str


class RankWait(msgspec.Struct, frozen=True):
    """The wait of a rank for another rank.

    Attributes:
        rank: The rank that it waits for.
        ns: Time in an average step.
    """

    rank: int
    ns: int


class PathRank(msgspec.Struct, frozen=True):
    """The time of one rank in an average step.

    Attributes:
        rank: Global rank.
        host: Host name; null if unknown.
        on_path_ns: Computing on the critical path.
        computing_ns: Time in which no call is known to have blocked the rank.
        waiting_ns: Time spent waiting for other ranks to arrive.
        transfer_ns: Time blocked in calls after all ranks had arrived.
        waits_for: The ranks that it waited for, the longest wait first.
    """

    rank: int
    host: str | None
    on_path_ns: int
    computing_ns: int
    waiting_ns: int
    transfer_ns: int
    waits_for: tuple[RankWait, ...]


class PathCause(msgspec.Struct, frozen=True):
    """A cause of long steps, with the gain of removing it.

    Attributes:
        kind: `line`, `rank`, `node`, `stage` or `transfer`.
        ranks: The ranks concerned, ascending.
        host: The node; null for a stage or a transfer, or if unknown.
        call: The call, for a line or a transfer.
        excess_ns: Time per step and rank beyond the peers' time; for a transfer, its duration.
        gain_ns: Upper bound on the time a step would save.
        spent: The excess in nanoseconds by kind of time; negative for kinds on which the ranks spend less.
        text: The same in a sentence.
    """

    kind: CauseKind
    ranks: tuple[int, ...]
    host: str | None
    call: PathCall | None
    excess_ns: int
    gain_ns: int
    spent: Mapping[str, int]
    text: str


class PathClock(msgspec.Struct, frozen=True):
    """A clock that some ranks share.

    Attributes:
        ranks: The ranks on the clock.
        offset_ns: Offset to the clock of the first rank.
        bound_ns: Upper bound on the error of the offset; null if wall clocks are compared.
        meetings: Number of compared operations.
    """

    ranks: tuple[int, ...]
    offset_ns: int
    bound_ns: int | None
    meetings: int


class PathResult(msgspec.Struct, frozen=True):
    """The critical path of steady steps. Durations are per average step.

    Attributes:
        steps: The steps.
        computing_ns: Computing on the path.
        transfer_ns: Transfers on the path.
        pieces: The pieces of the path by kind, rank and call, the longest first.
        ranks: The time of each rank.
        causes: Causes of long steps, the greatest gain first.
        clocks: The aligned clocks.
        notes: Limits of this analysis, as sentences.
    """

    steps: PathSteps
    computing_ns: int
    transfer_ns: int
    pieces: tuple[PathLength, ...]
    ranks: tuple[PathRank, ...]
    causes: tuple[PathCause, ...]
    clocks: tuple[PathClock, ...]
    notes: tuple[str, ...]


def path_result(path: CriticalPath) -> PathResult:
    """Convert a critical path to its JSON result."""
    names = path.group_names
    return PathResult(
        steps=PathSteps(
            first=path.steps[0].step,
            last=path.steps[-1].step,
            count=len(path.steps),
            unsteady=path.unsteady,
            median_ns=path.step_ns,
            longest=tuple(
                LeftOutStep(step.step, step.duration_ns, describe_outlier(step, names)) for step in path.longest
            ),
        ),
        computing_ns=path.by_kind[PathKind.COMPUTING],
        transfer_ns=path.by_kind[PathKind.TRANSFER],
        pieces=tuple(
            PathLength(kind, rank, _call(label, names), length_ns, *_spent_on(path, kind, rank, label))
            for (kind, rank, label), length_ns in path.by_label.items()
        ),
        ranks=tuple(
            PathRank(
                rank=time.rank,
                host=time.host or None,
                on_path_ns=time.on_path_ns,
                computing_ns=time.computing_ns,
                waiting_ns=time.waiting_ns,
                transfer_ns=time.transfer_ns,
                waits_for=tuple(RankWait(*wait) for wait in time.waits_for),
            )
            for time in path.by_rank
        ),
        causes=tuple(
            PathCause(
                kind=cause.kind,
                ranks=cause.ranks,
                host=cause.host or None,
                call=_call(cause.label, names),
                excess_ns=cause.excess_ns,
                gain_ns=cause.gain_ns,
                spent=_spent(cause.kinds),
                text=describe_cause(cause, names),
            )
            for cause in path.causes
        ),
        clocks=tuple(PathClock(clock.ranks, clock.offset_ns, clock.bound_ns, clock.meetings) for clock in path.clocks),
        notes=path.notes,
    )


def _spent_on(path: CriticalPath, kind: PathKind, rank: int, label: Label | None) -> tuple[dict[str, int], str]:
    if kind is PathKind.TRANSFER:
        return {}, ""
    spent = path.spent.get((rank, label), {})
    return _spent(spent), describe_doing(spent)


def _spent(kinds: Mapping[TimeKind, int]) -> dict[str, int]:
    return {kind.value: kinds[kind] for kind in TimeKind if kinds.get(kind)}


def _call(label: Label | None, names: Mapping[str, str]) -> PathCall | None:
    if label is None:
        return None
    site = label.site
    return PathCall(
        operation=label.operation,
        group=label.group or None,
        group_name=names.get(label.group),
        function=site.function if site is not None else None,
        file=site.file if site is not None else None,
        line=site.line if site is not None else None,
        where=describe_frame(site) if site is not None else None,
    )
