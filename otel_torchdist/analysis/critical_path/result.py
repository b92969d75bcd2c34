"""The critical path as a result: what it consists of in an average step, as it stands in JSON and in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Final

import msgspec

from otel_torchdist.analysis.critical_path.critical_path import Cause, CauseKind, CriticalPath, PathKind, StepPath
from otel_torchdist.analysis.critical_path.timelines import Label
from otel_torchdist.judge.verdict.wording.calls import describe_frame
from otel_torchdist.model.activity_kinds import TimeKind
from otel_torchdist.model.naming import name_ranks, readable
from otel_torchdist.model.units import duration, share


class PathCall(msgspec.Struct, frozen=True):
    """The calls of one line of the program in one group.

    Attributes:
        operation: `all_reduce`, `send`, …
        group: Key of the process group; null if it is not known.
        group_name: Its name in sentences.
        function: Function that calls; null if the line is not known.
        file: Path of its file.
        line: Number of the line.
        where: The three in words, such as `forward at model.py:88`.
    """

    operation: str
    group: str | None
    group_name: str | None
    function: str | None
    file: str | None
    line: int | None
    where: str | None


class LeftOutStep(msgspec.Struct, frozen=True):
    """A step that took unusually long.

    Attributes:
        step: Its number.
        ns: Its duration.
        text: What took so long.
    """

    step: int | None
    ns: int
    text: str


class PathSteps(msgspec.Struct, frozen=True):
    """The steady steps that the path goes through.

    Attributes:
        first: The first of them; null where no steps are recorded, and all calls count as one.
        last: The last of them, likewise.
        count: Number of them.
        unsteady: Number of steps that were left out, because they took more than twice the median.
        median_ns: Their median duration.
        longest: The longest of those left out.
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
        call: The call that the rank computed before, or that transferred; null before the end of a step.
        ns: Their length in an average step.
        spent: Nanoseconds of the computing, by what the rank does: `data`, `checkpoint`, `optimizer`, `backward`,
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
    """The wait of a rank for another one.

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
        host: Host name; null if it is not known.
        on_path_ns: Its computing on the critical path.
        computing_ns: Time in which no call is known to have held it up.
        waiting_ns: Time in which it waited for another rank to arrive.
        transfer_ns: Time in which calls held it up after all had arrived.
        waits_for: The ranks that it waited for, the longest first.
    """

    rank: int
    host: str | None
    on_path_ns: int
    computing_ns: int
    waiting_ns: int
    transfer_ns: int
    waits_for: tuple[RankWait, ...]


class PathCause(msgspec.Struct, frozen=True):
    """Something that makes steps longer, and what a step would gain without it.

    Attributes:
        kind: `line`, `rank`, `node`, `stage` or `transfer`.
        ranks: The ranks concerned, ascending.
        host: The node, if it is one.
        call: The call, for a line or a transfer.
        excess_ns: Time that the ranks take more than their peers in a step; for a transfer, its time.
        gain_ns: Time that a step would be shorter at most.
        spent: Nanoseconds of the excess, by what the ranks do; a rank may spend less on some.
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
    """The clock of some ranks.

    Attributes:
        ranks: The ranks that have it.
        offset_ns: Its offset to the clock of the first.
        bound_ns: Greatest error of the offset; null where wall clocks are compared.
        meetings: Number of operations that it follows from.
    """

    ranks: tuple[int, ...]
    offset_ns: int
    bound_ns: int | None
    meetings: int


class PathResult(msgspec.Struct, frozen=True):
    """The critical path of steady steps; durations are those of an average step.

    Attributes:
        steps: The steps.
        computing_ns: Computing on the path.
        transfer_ns: Transfers on the path.
        pieces: The path, by what happens on it, the longest first.
        ranks: The time of each rank.
        causes: What could be removed, the greatest gain first.
        clocks: The clocks that were aligned.
        notes: What could not be taken into account.
    """

    steps: PathSteps
    computing_ns: int
    transfer_ns: int
    pieces: tuple[PathLength, ...]
    ranks: tuple[PathRank, ...]
    causes: tuple[PathCause, ...]
    clocks: tuple[PathClock, ...]
    notes: tuple[str, ...]


def path_result(found: CriticalPath) -> PathResult:
    """Return the result of an analysis of the critical path."""
    names = found.group_names
    return PathResult(
        steps=PathSteps(
            first=found.steps[0].step,
            last=found.steps[-1].step,
            count=len(found.steps),
            unsteady=found.unsteady,
            median_ns=found.step_ns,
            longest=tuple(LeftOutStep(one.step, one.duration_ns, left_out(one, names)) for one in found.longest),
        ),
        computing_ns=found.by_kind[PathKind.COMPUTING],
        transfer_ns=found.by_kind[PathKind.TRANSFER],
        pieces=tuple(
            PathLength(kind, rank, _call(label, names), length_ns, *_spent_on(found, kind, rank, label))
            for (kind, rank, label), length_ns in found.by_label.items()
        ),
        ranks=tuple(
            PathRank(
                rank=one.rank,
                host=one.host or None,
                on_path_ns=one.on_path_ns,
                computing_ns=one.computing_ns,
                waiting_ns=one.waiting_ns,
                transfer_ns=one.transfer_ns,
                waits_for=tuple(RankWait(*wait) for wait in one.waits_for),
            )
            for one in found.by_rank
        ),
        causes=tuple(
            PathCause(
                kind=one.kind,
                ranks=one.ranks,
                host=one.host or None,
                call=_call(one.label, names),
                excess_ns=one.excess_ns,
                gain_ns=one.gain_ns,
                spent=_spent(one.kinds),
                text=sentence(one, names),
            )
            for one in found.causes
        ),
        clocks=tuple(PathClock(one.ranks, one.offset_ns, one.bound_ns, one.meetings) for one in found.clocks),
        notes=found.notes,
    )


def _spent_on(found: CriticalPath, kind: PathKind, rank: int, label: Label | None) -> tuple[dict[str, int], str]:
    if kind is PathKind.TRANSFER:
        return {}, ""
    spent = found.spent.get((rank, label), {})
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


def sentence(cause: Cause, group_names: Mapping[str, str]) -> str:
    """Say what a cause is: `rank 2 computes 5.48 ms longer than its peers before all_reduce at step (train.py:16)`.

    It names what most of the time is spent on: `rank 3 waits 52.1 ms longer for data than its peers`.
    """
    ranks, excess = name_ranks(cause.ranks), duration(cause.excess_ns)
    match cause.kind:
        case CauseKind.LINE:
            call = call_of(cause.label, group_names)
            return f"{ranks} {_spends(cause)} than its peers before {call}{_in_all(cause)}"
        case CauseKind.RANK:
            return f"{ranks} {_spends(cause)} than its peers before several calls{_in_all(cause)}"
        case CauseKind.NODE:
            return f"{ranks} on {readable(cause.host)} {_spends(cause)} than their peers on other nodes{_in_all(cause)}"
        case CauseKind.STAGE:
            is_or_are, compute = ("is", "computes") if len(cause.ranks) == 1 else ("are", "compute")
            return f"{ranks}, which {is_or_are} one stage of a pipeline, {compute} {excess} longer than other stages"
        case CauseKind.TRANSFER:
            return f"{call_of(cause.label, group_names)} takes {excess} of the path after all have arrived"


_MOST: Final = 0.8
"""Share of an excess that is all of it, for a reader."""


def _spends(cause: Cause) -> str:
    """What ranks do for longer than their peers: `waits 52.1 ms longer for data`."""
    s = "" if len(cause.ranks) > 1 else "s"
    time = f"{duration(cause.kinds.get(cause.main_kind, cause.excess_ns))} longer"
    match cause.main_kind:
        case TimeKind.COMPUTING:
            return f"compute{s} {duration(cause.excess_ns)} longer"
        case TimeKind.DATA:
            return f"wait{s} {time} for data"
        case TimeKind.CHECKPOINT:
            return f"spend{s} {time} in checkpoints"
        case TimeKind.OPTIMIZER:
            return f"spend{s} {time} in the optimizer's step"
        case TimeKind.BACKWARD:
            return f"compute{s} {time} in the backward pass"
        case TimeKind.REMOTE_CALL:
            return f"wait{s} {time} for remote procedure calls"


def _in_all(cause: Cause) -> str:
    """How much later ranks come in all, if what they are said to do is not most of that."""
    main = cause.main_kind
    if main is TimeKind.COMPUTING or cause.kinds[main] >= _MOST * cause.excess_ns:
        return ""
    return f", and take{'' if len(cause.ranks) > 1 else 's'} {duration(cause.excess_ns)} longer in all"


_DOING: Final = {
    TimeKind.DATA: "waiting for data",
    TimeKind.CHECKPOINT: "in a checkpoint",
    TimeKind.OPTIMIZER: "in the optimizer's step",
    TimeKind.BACKWARD: "in the backward pass",
    TimeKind.REMOTE_CALL: "waiting for remote procedure calls",
    TimeKind.COMPUTING: "computing",
}


def describe_doing(spent: Mapping[TimeKind, int]) -> str:
    """What a rank does before a call: `waiting for data`; with how long if it does something else, too."""
    total_ns = sum(spent.values())
    main = max(spent, key=spent.__getitem__, default=TimeKind.COMPUTING)
    rest = [kind for kind in spent if kind is not main and spent[kind] >= (1 - _MOST) * total_ns]
    if not rest:
        return _DOING[main]
    kinds = sorted([main, *rest], key=lambda kind: -spent[kind])
    return ", ".join(f"{_DOING[kind]} ({duration(spent[kind])})" for kind in kinds)


def left_out(step: StepPath, group_names: Mapping[str, str]) -> str:
    """Say what took so long in a step that is not steady: `step 8 took 20.0 s: 99% of that is rank 2, computing …`."""
    took = f"step {step.step} is left out, it took {duration(step.duration_ns)}"
    piece = step.longest_piece
    if piece is None:
        return took
    what = f"{describe_doing(step.longest_spent)} before" if piece.kind is PathKind.COMPUTING else "transfer of"
    part = share(piece.duration_ns, step.duration_ns)
    return f"{took}: {part} of that is rank {piece.rank}, {what} {call_of(piece.label, group_names)}"


def call_of(label: Label | None, group_names: Mapping[str, str]) -> str:
    """Name a call: `all_reduce in mesh_dp at step (train.py:16)`; `the end of the step` for None."""
    if label is None:
        return "the end of the step"
    group = group_names.get(label.group)
    within = f" in {readable(group)}" if group else ""
    site = label.site
    if site is None:
        return f"{label.operation}{within}"
    return f"{label.operation}{within} at {readable(site.function)} ({readable(PurePath(site.file).name)}:{site.line})"
