"""Puts together what several ranks say alike: a report of a thousand ranks has a few lines."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from otel_torchdist.judge.world.places import thread_to_show, user_frame
from otel_torchdist.model.code_owner import FrameOwner, owner_of
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.stacks import ThreadStack
from otel_torchdist.sources.evidence.facts import CalledAt, Ended, Raised, Reached, SeenStacks, TimedOut
from otel_torchdist.sources.evidence.statements import Statement, StatementKind, TextSource
from otel_torchdist.sources.evidence.texts.process_groups import TITLE
from otel_torchdist.sources.evidence.together import put_together

_ADDRESS: Final = re.compile(r" \[?[\w.:%]+\]?:\d+")
_COLLECTIVES: Final = ("torch/distributed/distributed_c10d.py", "torch/distributed/_functional_collectives.py")
_LOST_PEER: Final = re.compile(
    "closed by peer|reset by peer|[Bb]roken pipe|[Rr]emote process exited|ncclRemoteError|communicator was aborted"
)
"""What the error of a rank says that has lost another one."""
_ASKED: Final = ("SIGTERM", "SIGINT")
"""What launchers send to the others."""
_GLOO: Final = re.compile(r"\[(?=[^\[\]\s]*gloo/transport/)[^\[\]\s]*\] ")


@dataclass(frozen=True, slots=True)
class ToolFinding:
    """A message that one or more ranks have in common.

    Attributes:
        kind: What it is about.
        ranks: Global ranks, ascending.
        others: Speakers whose rank is not known: `process 12`, `local rank 3`, …
        text: The message, without what differs between them.
        frame: A line of the job's code that belongs to it; None if there is none.
        is_call: Whether that line called the operation that the message is about.
        source: Where the first of them is written.
        count: How many there are.
        is_first: Whether a launcher observed this failure before all others.
    """

    kind: StatementKind
    ranks: tuple[int, ...]
    others: tuple[str, ...]
    text: str
    frame: CallSiteName | None
    is_call: bool
    source: TextSource
    count: int
    is_first: bool = False


def findings_of(statements: Iterable[Statement]) -> list[ToolFinding]:
    """Return the findings: what a launcher saw first, then in the order of their kinds, what most ranks say first."""
    groups: dict[tuple[StatementKind, str, CallSiteName | None, bool], list[Statement]] = {}
    every = _with_causes_first(put_together(list(statements)))
    called = {one.rank: frame_of(one) for one in every if one.kind is StatementKind.CALLED and one.rank is not None}
    for one in _without_doubles(every):
        is_call = one.kind is StatementKind.TIMED_OUT and one.rank is not None
        frame = called.get(one.rank or 0) if is_call else frame_of(one)
        if one.kind is not StatementKind.CALLED:
            groups.setdefault((one.kind, described(one), frame, _is_first(one)), []).append(one)
    found = [_finding(*key, alike) for key, alike in groups.items()]
    order = list(StatementKind)
    return sorted(found, key=lambda one: (not one.is_first, order.index(one.kind), -one.count, one.text, one.ranks))


def _finding(
    kind: StatementKind, text: str, frame: CallSiteName | None, is_first: bool, alike: Sequence[Statement]
) -> ToolFinding:
    return ToolFinding(
        kind=kind,
        ranks=tuple(sorted({one.rank for one in alike if one.rank is not None})),
        others=tuple(sorted({_speaker(one) for one in alike if one.rank is None})),
        text=text,
        frame=frame,
        is_call=_is_call(alike[0]),
        source=alike[0].source,
        count=len(alike) + sum(one.repeated for one in alike),
        is_first=is_first,
    )


def _is_call(one: Statement) -> bool:
    return one.kind is StatementKind.TIMED_OUT or (isinstance(one.fact, SeenStacks) and bool(collective_of(one.fact)))


def _speaker(one: Statement) -> str:
    """Return a description of a speaker whose rank is unknown."""
    if one.group is not None and one.group.rank is not None:
        return f"rank {one.group.rank} of {one.group.description or one.group.uid or 'its group'}"
    if one.local_rank is not None:
        return f"local rank {one.local_rank}"
    return f"process {one.pid}" if one.pid is not None else one.label or "a rank that is not named"


def _with_causes_first(statements: Sequence[Statement]) -> list[Statement]:
    """Correct a launcher's first failure where it only lists the rank first: its times are whole seconds.

    If that rank has lost another one, a failure of the same second that says something else came before.
    """
    rows = [one for one in statements if _is_of_table(one)]
    caused = {_second(one) for one in rows if _has_own_error(one)}
    wrong = {_second(one) for one in rows if _has_lost_peer(one) and _is_first(one)} & caused
    return [
        _as_first(one, _has_own_error(one)) if _is_of_table(one) and _second(one) in wrong else one
        for one in statements
    ]


def _second(one: Statement) -> tuple[str, str]:
    """Return the file with the table, and the time of a row of it."""
    return one.source.path, one.time


def _is_first(one: Statement) -> bool:
    return isinstance(one.fact, Ended) and one.fact.is_first


def _has_lost_peer(one: Statement) -> bool:
    return isinstance(one.fact, Ended) and _LOST_PEER.search(one.fact.error) is not None


def _has_own_error(one: Statement) -> bool:
    """Whether a rank raised by itself or was struck by a signal, and was not asked to end by its launcher."""
    fact = one.fact
    if not isinstance(fact, Ended) or _has_lost_peer(one):
        return False
    return bool(fact.error or (fact.signal and fact.signal not in _ASKED))


def _as_first(one: Statement, is_first: bool) -> Statement:
    return replace(one, fact=replace(one.fact, is_first=is_first)) if isinstance(one.fact, Ended) else one


def _without_doubles(statements: Sequence[Statement]) -> Iterable[Statement]:
    """Leave out what another statement of the same rank contains."""
    raised = {(one.rank, one.source.path) for one in statements if one.kind is StatementKind.RAISED}
    crashed = {one.source for one in statements if one.kind is StatementKind.STACKS}
    said_what = {
        _speaks(one) for one in statements if one.kind is StatementKind.CRASHED and one.text.startswith("terminated by")
    }
    ends = {(one.pid, one.fact.way) for one in statements if _is_of_table(one) and isinstance(one.fact, Ended)}
    for one in statements:
        if one.text.startswith("gloo: ") and (one.rank, one.source.path) in raised:
            continue
        if one.kind is StatementKind.CRASHED and one.source in crashed:
            continue
        if one.kind is StatementKind.CRASHED and one.text.startswith("terminate called") and _speaks(one) in said_what:
            continue
        if isinstance(one.fact, Ended) and not _is_of_table(one) and (one.pid, one.fact.way) in ends:
            continue
        yield one


def _speaks(one: Statement) -> tuple[str, str]:
    return one.source.path, one.label


def _is_of_table(one: Statement) -> bool:
    """Whether it is a row of torchrun's table, which names the rank, and not the line before it."""
    return one.kind is StatementKind.ENDED and one.text.startswith("rank ")


def described(one: Statement) -> str:
    """Return the text of a statement without the parts that differ between ranks."""
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
        return f"crashed: {fact.crash}" if fact.crash else _within(fact)
    return _plain(one.text)


def _plain(text: str) -> str:
    if TITLE in text:  # what was called is said once, for all ranks
        return text[: text.index(TITLE) + len(TITLE)]
    return _ADDRESS.sub("", _GLOO.sub("", text))


def _of_group(one: Statement) -> str:
    group = one.group
    return f" of {group.description or f'group {group.uid}'}" if group and (group.description or group.uid) else ""


def _within(stacks: SeenStacks) -> str:
    operation = collective_of(stacks)
    return f"in {operation}" if operation else "in no operation of torch.distributed"


def collective_of(stacks: SeenStacks) -> str:
    """Return the function of torch.distributed that the thread of interest is in, as the job called it; '' for none."""
    thread = shown_thread(stacks)
    return _collective_in(thread) if thread is not None else ""


def stacks_by_rank(statements: Iterable[Statement]) -> dict[int, ThreadStack]:
    """Return the thread of interest of each rank whose stacks are known."""
    threads = {one.rank: shown_thread(one.fact) for one in statements if isinstance(one.fact, SeenStacks)}
    return {rank: thread for rank, thread in threads.items() if rank is not None and thread is not None}


def shown_thread(stacks: SeenStacks) -> ThreadStack | None:
    """Return the thread of interest: the crashed thread, else the main thread, or the thread that blocks it."""
    if stacks.crash:
        return next(iter(stacks.threads), None)
    main = thread_to_show(stacks.threads, None)
    # Operations release the GIL while they wait, so it does not matter which thread holds it then.
    if main is None or _collective_in(main):
        return main
    return thread_to_show(stacks.threads, stacks.holds_gil)


def _collective_in(thread: ThreadStack) -> str:
    inside = itertools.takewhile(
        lambda frame: owner_of(frame.file, frame.function) is not FrameOwner.USER, thread.frames
    )
    return next((frame.function for frame in reversed([*inside]) if frame.file.endswith(_COLLECTIVES)), "")


def outside_of_collectives(statements: Iterable[Statement]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ranks whose stacks show no operation of torch.distributed, and those whose stacks show one; each ascending.

    Only where the call itself blocks, as with gloo, does this tell who is waited for.
    """
    stacks = {one.rank: one.fact for one in statements if isinstance(one.fact, SeenStacks) and one.rank is not None}
    inside = {rank for rank, fact in stacks.items() if collective_of(fact)}
    return tuple(sorted(stacks.keys() - inside)), tuple(sorted(inside))


def frame_of(one: Statement) -> CallSiteName | None:
    """Return the line of the job's code that a statement shows: of its stack the innermost frame of the user's code."""
    fact = one.fact
    if isinstance(fact, Raised | CalledAt):
        return user_frame(fact.frames)
    if not isinstance(fact, SeenStacks):
        return None
    thread = shown_thread(fact)
    return user_frame(thread.frames) if thread is not None else None
