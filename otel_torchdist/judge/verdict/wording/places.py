"""Where ranks are in their code, and what they do there, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import PurePath
from typing import Final

from otel_torchdist.judge.verdict.idle import Idle, IdlePlace
from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.judge.verdict.wording.calls import (
    at_line,
    called_in,
    describe_frame,
    describe_instead,
    describe_operation,
    describe_raised,
    describe_through,
)
from otel_torchdist.judge.world.occupations import CallStage
from otel_torchdist.judge.world.places import PlaceSource, RankPlace
from otel_torchdist.model.rank_state.occupations import CheckpointView, ChildWait
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.text import decimal_size, name_ranks, seconds

# --- children ---------------------------------------------------------------------------------------------------------
# Child processes that a rank waits for: `DataLoader worker 1 (pid 81), which has been in read() of …`.


_PLURALS: Final = {
    "DataLoader worker": "DataLoader workers",
    "child process": "child processes",
    "command": "commands",
}
_MAX_PIDS: Final = 4


def describe_child(child: ChildWait, for_s: float) -> str:
    """Describe the activity of a child, or of several equal children, and its duration."""
    pids = (child.pid, *child.others)
    if len(pids) == 1:
        has_been = f"which has been {child.doing} for {seconds(for_s)}"
        return f"{child.name} (pid {child.pid}), {has_been}{_held(child, 'it was')}"
    names = _PLURALS.get(child.name, child.name)
    shown = ", ".join(map(str, pids[:_MAX_PIDS])) + (", …" if len(pids) > _MAX_PIDS else "")
    held = _held(child, "they were")
    return f"its {len(pids)} {names} (pids {shown}), which have been {child.doing} for {seconds(for_s)}{held}"


def _held(child: ChildWait, they_were: str) -> str:
    """Describe an inherited lock, and the thread that may have held it."""
    if not (child.is_locked and child.is_forked):
        return ""
    frame = child.holder
    by = f", by its thread in {frame.function} at {PurePath(frame.file).name}:{frame.line}" if frame is not None else ""
    return f", which was held when {they_were} forked, as it seems{by}"


# --- remote calls -----------------------------------------------------------------------------------------------------


def describe_call(place: RankPlace, subject: str) -> str:
    """Describe a remote call: `it waits for train on worker1 (rank 1), which has run for 12.0 s`; '' if none."""
    remote = place.remote
    if remote is None:
        return ""
    operation = remote.operation.name if remote.operation is not None else ""
    served = _stage(remote.served, seconds(place.remote_for_ns / 1e9), operation)
    return f"{subject} waits for {remote.text}, which {served}"


def _stage(stage: CallStage, age: str, operation: str) -> str:
    match stage:
        case CallStage.RUNS:
            return f"has run for {age}"
        case CallStage.WAITS:
            return f"is in {operation}"
        case CallStage.STOPPED:
            return "does not run, because it is stopped"
        case CallStage.DEFERRED:
            return "has returned a future"
        case CallStage.NOT_BEGUN:
            return f"is not seen to have begun in {age}"
        case CallStage.UNSEEN:
            return "is not seen from here"


# --- checkpoints ------------------------------------------------------------------------------------------------------


def describe_checkpoint(place: RankPlace) -> str:
    """Describe a checkpoint: `checkpoint save /ckpt/1200, write_data, for 63.0 s (410 MB)`; '' if none."""
    checkpoint = place.checkpoint
    if checkpoint is None:
        return ""
    parts = [name_checkpoint(checkpoint.operation, checkpoint.checkpoint)]
    doing = checkpoint.stage or (checkpoint.meeting and f"stage {checkpoint.meeting}")
    if doing:
        parts.append(doing)
    how_much = f" ({decimal_size(checkpoint.message_bytes)})" if checkpoint.message_bytes else ""
    return f"{', '.join(parts)}, for {seconds(place.checkpoint_for_ns / 1e9)}{how_much}"


def name_checkpoint(operation: str, checkpoint: str) -> str:
    """Name a checkpoint: `checkpoint save /ckpt/1200`, `torch.save rank0.pt`."""
    known = operation if operation.startswith("torch.") else f"checkpoint {operation}"
    return f"{known} {checkpoint}".rstrip()


def lone_saver(verdict: Verdict) -> RankPlace | None:
    """Return the place of the only missing rank if it is in a checkpoint, which explains its absence."""
    if verdict.kind is not VerdictKind.ABSENT or len(verdict.ranks) != 1:
        return None
    place = verdict.places.get(verdict.ranks[0])
    return place if place is not None and place.checkpoint is not None else None


def shared_meeting(verdict: Verdict) -> str:
    """Return the checkpoint stage in which all ranks wait; '' if they do not wait in one, or if unknown."""
    return _only(verdict.places[rank].checkpoint for rank in verdict.waiting if rank in verdict.places)


def _only(checkpoints: Iterable[CheckpointView | None]) -> str:
    meetings = {checkpoint.meeting if checkpoint is not None else "" for checkpoint in checkpoints}
    return meetings.pop() if len(meetings) == 1 else ""


# --- waits ------------------------------------------------------------------------------------------------------------


def where_they_wait(verdict: Verdict) -> str:
    """Describe the most frequent line of waiting ranks, if other ranks are named: ` in train at train.py:42`."""
    if not verdict.kind.traits.names_others:
        return ""
    waiting = [verdict.places[rank] for rank in verdict.waiting if rank in verdict.places]
    frames = Counter(place.frame for place in waiting if place.frame is not None)
    return f" in {describe_frame(frames.most_common(1)[0][0])}" if frames else ""


# --- waits behind waits -----------------------------------------------------------------------------------------------
# Waits behind other waits across worlds, as clauses of a sentence.


def describe_waits_behind(verdict: Verdict) -> list[str]:
    """Describe the ranks that wait in the verdict's operation, and the ranks that wait for them in another world."""
    clauses: list[str] = []
    for wait in verdict.behind:
        is_first = wait.operation_id == verdict.operation_id
        whom = ("it" if len(wait.for_ranks) == 1 else "them") if is_first else name_ranks(wait.for_ranks)
        where = "" if is_first else f" in {describe_operation(wait.operation, wait.group, wait.operation_id)}"
        verb = "waits" if len(wait.ranks) == 1 else "wait"
        clauses.append(f"{name_ranks(wait.ranks)} {verb} for {whom}{where}{at_line(wait.call_site)}")
    return clauses if verdict.ranks else []


# --- idle jobs --------------------------------------------------------------------------------------------------------


MAX_LINES: Final = 3


def describe_idle(idle: Idle, lasted_s: float, is_over: bool = False) -> str:
    """Describe where all ranks are idle, grouped by line, and for how long.

    Args:
        idle: The job.
        lasted_s: Seconds since any rank last called an operation.
        is_over: Whether the processes have ended.
    """
    parties: dict[IdlePlace, list[int]] = {}
    for rank in idle.ranks:
        parties.setdefault(idle.places[rank], []).append(rank)
    ordered = sorted(parties.items(), key=lambda party: (-len(party[1]), party[1]))
    places = [_place(place, ranks, is_over) for place, ranks in ordered[:MAX_LINES]]
    others = sum(len(ranks) for _, ranks in ordered[MAX_LINES:])
    more = [f"{others} more elsewhere"] if others else []
    none = "no rank was in an operation" if is_over else "no rank is in an operation, and none has been"
    return f"{', '.join([*places, *more])}: {none} for {seconds(lasted_s)}"


def _place(place: IdlePlace, ranks: list[int], is_over: bool) -> str:
    verb = ("was" if is_over else "is") if len(ranks) == 1 else ("were" if is_over else "are")
    waits_in = f", in {place.waits_in}" if place.waits_in else ""
    return f"{name_ranks(ranks)} {verb} in {describe_frame(place.frame)}{waits_in}"


def describe_place(place: RankPlace, subject: str) -> str:
    """Describe the place of `subject` ("rank 2", "it"); '' if unknown."""
    line = "" if place.frame is None else describe_frame(place.frame)
    through = describe_through(place.frame)
    if through:
        line += f", in {through}"
    match place.source:
        case PlaceSource.STACK:
            clause = f"{subject} is in {line}" if line else ""
        case PlaceSource.SIGNAL:
            clause = f"{subject} is in {line} (stack taken by a signal while the GIL was held)" if line else ""
        case PlaceSource.EXCEPTION:
            clause = describe_raised(subject, place.operation, line, place.message)
        case PlaceSource.OPEN_OPERATION:
            clause = f"{subject} is in {place.operation}{called_in(place.frame)}"
        case PlaceSource.LAST_OPERATION:
            clause = f"{subject} was last in {place.operation}{called_in(place.frame)}"
        case PlaceSource.NOTHING:
            clause = ""
    if place.instead is not None:
        clause = f"{subject} is in {describe_instead(place.instead)}{called_in(place.frame)}"
    if clause and place.child is not None:
        clause += f" and waits for {describe_child(place.child, place.child_for_ns / 1e9)}"
    if place.frozen_for_ns is None:
        return clause
    frozen = f"its Python threads have not run for {seconds(place.frozen_for_ns / 1e9)}"
    return f"{clause}, and {frozen}" if clause else f"{subject} does not answer: {frozen}"
