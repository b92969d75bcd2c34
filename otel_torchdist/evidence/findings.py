"""Puts together what several ranks say alike: a report of a thousand ranks has a few lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from otel_torchdist.evidence.model import (
    CalledAt,
    Ended,
    Kind,
    Raised,
    Reached,
    SeenStacks,
    Source,
    Testimony,
    TimedOut,
)
from otel_torchdist.tape.records import CallSiteName
from otel_torchdist.world.places import thread_to_show, user_frame

_ADDRESS: Final = re.compile(r" \[?[\w.:%]+\]?:\d+")
_GLOO: Final = re.compile(r"\[[^\]\s]*gloo/transport/[^\]\s]*\] ")


@dataclass(frozen=True, slots=True)
class Finding:
    """The same message of some ranks.

    Attributes:
        kind: What it is about.
        ranks: Global ranks, ascending.
        others: Speakers whose rank is not known: `pid 12`, `local rank 3`, …
        text: The message, without what differs between them.
        frame: A line of the job's code that belongs to it; None if there is none.
        source: Where the first of them is written.
        count: How many there are.
        is_first: Whether a launcher observed this failure before all others.
    """

    kind: Kind
    ranks: tuple[int, ...]
    others: tuple[str, ...]
    text: str
    frame: CallSiteName | None
    source: Source
    count: int
    is_first: bool = False


def findings_of(testimonies: Iterable[Testimony]) -> list[Finding]:
    """Return the findings, in the order of their kinds, what most ranks say first."""
    groups: dict[tuple[Kind, str, CallSiteName | None, bool], list[Testimony]] = {}
    for one in _without_doubles(list(testimonies)):
        if one.kind is not Kind.CALLED:
            is_first = isinstance(one.fact, Ended) and one.fact.is_first
            groups.setdefault((one.kind, described(one), frame_of(one), is_first), []).append(one)
    found = [_finding(*key, alike) for key, alike in groups.items()]
    order = list(Kind)
    return sorted(found, key=lambda one: (order.index(one.kind), not one.is_first, -one.count, one.text, one.ranks))


def _finding(kind: Kind, text: str, frame: CallSiteName | None, is_first: bool, alike: Sequence[Testimony]) -> Finding:
    return Finding(
        kind=kind,
        ranks=tuple(sorted({one.rank for one in alike if one.rank is not None})),
        others=tuple(sorted({_speaker(one) for one in alike if one.rank is None})),
        text=text,
        frame=frame,
        source=alike[0].source,
        count=len(alike) + sum(one.repeated for one in alike),
        is_first=is_first,
    )


def _speaker(one: Testimony) -> str:
    """What is known of a speaker whose rank is not."""
    if one.group is not None and one.group.rank is not None:
        return f"rank {one.group.rank} of {one.group.description or one.group.uid or 'its group'}"
    if one.local_rank is not None:
        return f"local rank {one.local_rank}"
    return f"process {one.pid}" if one.pid is not None else one.label or "a rank that is not named"


def _without_doubles(testimonies: Sequence[Testimony]) -> Iterable[Testimony]:
    """Leave out what another testimony of the same rank contains."""
    raised = {(one.rank, one.source.path) for one in testimonies if one.kind is Kind.RAISED}
    crashed = {one.source for one in testimonies if one.kind is Kind.STACKS}
    ends = {(one.pid, one.fact.way) for one in testimonies if _is_of_table(one) and isinstance(one.fact, Ended)}
    for one in testimonies:
        if one.text.startswith("gloo: ") and (one.rank, one.source.path) in raised:
            continue
        if one.kind is Kind.CRASHED and one.source in crashed:
            continue
        if isinstance(one.fact, Ended) and not _is_of_table(one) and (one.pid, one.fact.way) in ends:
            continue
        yield one


def _is_of_table(one: Testimony) -> bool:
    """Whether it is a row of torchrun's table, which names the rank, and not the line before it."""
    return one.kind is Kind.ENDED and one.text.startswith("rank ")


def described(one: Testimony) -> str:
    """What a testimony says, without what differs between ranks that say the same."""
    fact = one.fact
    if isinstance(fact, TimedOut) and fact.operation:
        place = f" #{fact.sequence}" if fact.sequence is not None else ""
        return f"{fact.operation}{place}{_of_group(one)} timed out after {fact.timeout_ms / 1000:g} s"
    if isinstance(fact, Reached):
        return f"had enqueued up to #{fact.enqueued} and completed up to #{fact.completed}{_of_group(one)}"
    if isinstance(fact, Ended):
        # Only of the first is the exception a cause; the others show theirs by themselves.
        return f"ended with {fact.way}" + (f", after {_plain(fact.error)}" if fact.error and fact.is_first else "")
    if isinstance(fact, SeenStacks):
        return f"crashed: {fact.crash}" if fact.crash else "was in"
    return _plain(one.text)


def _plain(text: str) -> str:
    return _ADDRESS.sub("", _GLOO.sub("", text))


def _of_group(one: Testimony) -> str:
    group = one.group
    return f" of {group.description or f'group {group.uid}'}" if group and (group.description or group.uid) else ""


def frame_of(one: Testimony) -> CallSiteName | None:
    """The line of the job's code that a testimony shows: of its stack the innermost frame outside torch."""
    fact = one.fact
    if isinstance(fact, Raised | CalledAt):
        return user_frame(fact.frames)
    if not isinstance(fact, SeenStacks):
        return None
    # What holds the GIL keeps all other Python threads from running.
    thread = thread_to_show(fact.threads, fact.holds_gil)
    return user_frame(thread.frames) if thread is not None else None
