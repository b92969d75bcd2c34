"""The ongoing stall of a run: the ranks that hold it up, the operation, and their lines of code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from otel_torchdist.config import TRACE_ID_PLACEHOLDER
from otel_torchdist.judge.stall.events import Ruling, RunSeen
from otel_torchdist.judge.verdict.verdict import Verdict, locate
from otel_torchdist.judge.verdict.wording.sentence import sentence
from otel_torchdist.judge.world.places import PlaceSource, RankPlace, place_of
from otel_torchdist.model.calls import OperationId
from otel_torchdist.model.rank_state.lives import RankLife
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.snapshot import RankView, WorldSnapshot, life_in
from otel_torchdist.model.text import compress_ranks, listed_ranks, readable
from otel_torchdist.show.live.live_snapshot import AgentFacts
from otel_torchdist.show.live.texts import MAX_SENTENCE, shown, shown_group, shown_line, shown_stack
from otel_torchdist.telemetry import semconv

MAX_STACKS: Final = 4
"""Ranks whose stack is shown. The stacks of other ranks are in the trace of the stall."""


@dataclass(frozen=True, slots=True)
class KnownStall:
    """An ongoing stall, judged by this agent or another one.

    Attributes:
        kind: The kind of verdict; None if this version does not know it.
        ranks: The named ranks.
        operation_id: The stalled operation.
        operation: Its name.
        group: Name of its group.
        since_ns: Start of the stall, by the monotonic clock; None if this agent observes no waiting rank.
    """

    kind: VerdictKind | None
    ranks: frozenset[int]
    operation_id: OperationId
    operation: str
    group: str
    since_ns: int | None

    @property
    def names_the_missing(self) -> bool:
        """Whether the named ranks are alive, but have not entered the operation in which other ranks wait for them."""
        return self.kind is not None and self.kind.traits.names_the_missing


def stall_of_verdict(verdict: Verdict) -> KnownStall:
    """Convert a verdict of this agent."""
    return KnownStall(
        verdict.kind,
        frozenset(verdict.ranks),
        verdict.operation_id,
        shown(verdict.operation),
        shown_group(verdict.group, verdict.label),
        verdict.since_ns,
    )


def ongoing_stall(run: RunSeen) -> KnownStall | None:
    """Return the stall to show; None if there is none."""
    verdict, ruling = run.verdict, shown_ruling(run)
    if verdict is not None:
        return stall_of_verdict(verdict)
    if ruling is None:
        return None
    attributes = ruling.attributes
    group = attributes.get(semconv.GROUP_DESCRIPTION) or attributes.get(semconv.GROUP_HASH, "")
    return KnownStall(
        ruling.kind,
        frozenset(listed_ranks(ruling.ranks)),
        ruling.operation_id,
        shown(ruling.operation),
        shown(str(group)),
        _since(run.world, ruling.operation_id),
    )


def shown_ruling(run: RunSeen) -> Ruling | None:
    """Return the ruling on the ongoing stall, or on the stall in which the run has ended; None if there is neither."""
    if run.ruling is not None:
        return run.ruling
    views = run.world.ranks.values()
    has_ended = all(view.is_over for view in views)
    has_finished = all(life_in(view) is RankLife.FINISHED for view in views)
    return run.final if has_ended and not has_finished else None


def _since(world: WorldSnapshot, operation_id: OperationId) -> int | None:
    """Return the earliest time at which a rank observed by this agent began to wait in an operation."""
    waits = (view.at(operation_id) for view in world.ranks.values())
    return min((wait.waiting_since_ns for wait in waits if wait and wait.waiting_since_ns), default=None)


@dataclass(frozen=True, slots=True)
class StackPart:
    """The line of code and stack of one rank.

    Attributes:
        rank: The rank.
        host: Its node.
        line: The line of its code, or ''.
        stack: Its whole stack, outermost frame first; '' if it has written none.
        source: Source of the line.
        age_s: Age of the stack; None without one.
    """

    rank: int
    host: str
    line: str
    stack: str
    source: str
    age_s: float | None


@dataclass(frozen=True, slots=True)
class StallPart:
    """The stall banner.

    Attributes:
        text: The verdict as a sentence, with the current age; the age as of the verdict if the run has ended.
        kind: The verdict's name.
        ranks: The named ranks, such as `0-7,16`.
        operation: The stalled operation, with its sequence number.
        group: Name of its group.
        age_s: Time since its start; None if this agent observes no waiting rank, or if the run has ended.
        trace_id: Id of the stall's trace, in hex.
        trace_url: Address of that trace; '' if no such address is configured.
        docs_url: Address of the page on this kind of verdict; '' for a kind that this version does not know.
        stacks: Stacks of the named ranks, or of the first waiting rank if the verdict names none.
        left_out: Number of named ranks whose stacks are left out.
    """

    text: str
    kind: str
    ranks: str
    operation: str
    group: str
    age_s: float | None
    trace_id: str
    trace_url: str
    docs_url: str
    stacks: tuple[StackPart, ...]
    left_out: int


def stall_part(run: RunSeen, blame: KnownStall | None, facts: AgentFacts, now_ns: int) -> StallPart | None:
    """Describe the ongoing stall, or the stall in which the run has ended; return None if there is neither."""
    ruling = shown_ruling(run)
    if ruling is None or blame is None:
        return None
    located = _located(run.world, run.verdict)
    age_s = None if blame.since_ns is None else max(now_ns - blame.since_ns, 0) / 1e9
    text = ruling.text if located is None or age_s is None else sentence(located, age_s)
    trace_id = f"{ruling.incident.trace_id:032x}"
    stacks = tuple(_stacks(run, blame, located, now_ns))
    return StallPart(
        text=readable(text, MAX_SENTENCE),
        kind=_kind(ruling),
        ranks=compress_ranks(blame.ranks),
        operation=_operation(blame),
        group=blame.group,
        age_s=age_s,
        trace_id=trace_id,
        trace_url=facts.trace_url.replace(TRACE_ID_PLACEHOLDER, trace_id),
        docs_url="" if ruling.kind is None else f"{facts.docs_url}/verdicts/{ruling.kind.value}",
        stacks=stacks,
        left_out=len(blame.ranks - {part.rank for part in stacks}),
    )


def _kind(ruling: Ruling) -> str:
    return shown(ruling.verdict)


def _operation(blame: KnownStall) -> str:
    sequence = blame.operation_id.sequence
    return f"{blame.operation} #{sequence}" if sequence else blame.operation


def _located(world: WorldSnapshot, verdict: Verdict | None) -> Verdict | None:
    """Add the current lines of code to this agent's verdict; return None if one of its ranks is no longer observed."""
    if verdict is None or not verdict.roll.standings.keys() <= world.ranks.keys():
        return None
    return locate(world, verdict)


def _stacks(run: RunSeen, blame: KnownStall, located: Verdict | None, now_ns: int) -> Iterator[StackPart]:
    world = run.world
    waiting = [view.rank for view in world.in_order if view.at(blame.operation_id) is not None]
    for rank in (sorted(blame.ranks) or waiting[:1])[:MAX_STACKS]:
        view = world.ranks.get(rank)
        if view is None:
            continue
        position = located.places.get(rank) if located is not None else None
        position = position or place_of(view, view.at(blame.operation_id), world.taken_ns)
        if position.source is not PlaceSource.NOTHING:
            yield _stack(view, position, now_ns)


def _stack(view: RankView, position: RankPlace, now_ns: int) -> StackPart:
    has_stack = view.stacks is not None and bool(position.stacktrace)
    return StackPart(
        rank=view.rank,
        host=shown(view.host),
        line=shown_line(position.frame),
        stack=shown_stack(position.stacktrace),
        source=position.source.value,
        age_s=max(now_ns - view.stacks.asked_ns, 0) / 1e9 if has_stack and view.stacks is not None else None,
    )
