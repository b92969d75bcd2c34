"""Groups equal statements of several ranks, so that a report on a thousand ranks has a few lines."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from otel_torchdist.judge.world.places import thread_to_show, user_frame
from otel_torchdist.model.code_owner import FrameOwner, owner_of
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.rank_state.stacks import ThreadStack
from otel_torchdist.sources.evidence.combining import combine
from otel_torchdist.sources.evidence.facts import (
    OperationTimeout,
    ProcessExit,
    ProcessStacks,
    ReportedException,
    ReportedProgress,
    TimedOutCallStack,
)
from otel_torchdist.sources.evidence.statements import Statement, StatementKind, TextSource
from otel_torchdist.sources.evidence.texts.process_groups import TITLE

_ADDRESS: Final = re.compile(r" \[?[\w.:%]+\]?:\d+")
_COLLECTIVES: Final = ("torch/distributed/distributed_c10d.py", "torch/distributed/_functional_collectives.py")
_LOST_PEER: Final = re.compile(
    "closed by peer|reset by peer|[Bb]roken pipe|[Rr]emote process exited|ncclRemoteError|communicator was aborted"
)
"""Error texts of a rank that lost a peer."""
_LAUNCHER_SIGNALS: Final = ("SIGTERM", "SIGINT")
"""Signals that launchers send to the other ranks."""
_GLOO: Final = re.compile(r"\[(?=[^\[\]\s]*gloo/transport/)[^\[\]\s]*\] ")


@dataclass(frozen=True, slots=True)
class ToolFinding:
    """A message that one or more ranks share.

    Attributes:
        kind: The subject.
        ranks: Global ranks, ascending.
        unidentified: Authors without a known rank: `process 12`, `local rank 3`, …
        text: The message, without the parts that differ between ranks.
        frame: A line of the job's code that belongs to it; None if there is none.
        is_call: Whether `frame` is the call site of the operation in the message.
        source: File and line of the first statement.
        count: Number of statements.
        is_first: Whether a launcher observed this failure before all others.
    """

    kind: StatementKind
    ranks: tuple[int, ...]
    unidentified: tuple[str, ...]
    text: str
    frame: CallSiteName | None
    is_call: bool
    source: TextSource
    count: int
    is_first: bool = False


def findings_of(statements: Iterable[Statement]) -> list[ToolFinding]:
    """Group statements into findings: a launcher's first failure first, then by kind, and by descending count."""
    groups: dict[tuple[StatementKind, str, CallSiteName | None, bool], list[Statement]] = {}
    combined = _with_causes_first(combine(list(statements)))
    call_sites = {
        statement.rank: frame_of(statement)
        for statement in combined
        if statement.kind is StatementKind.CALLED and statement.rank is not None
    }
    for statement in _without_duplicates(combined):
        is_call = statement.kind is StatementKind.TIMED_OUT and statement.rank is not None
        frame = call_sites.get(statement.rank or 0) if is_call else frame_of(statement)
        if statement.kind is not StatementKind.CALLED:
            groups.setdefault((statement.kind, describe(statement), frame, _is_first(statement)), []).append(statement)
    findings = [_finding(*key, group) for key, group in groups.items()]
    order = list(StatementKind)
    return sorted(
        findings,
        key=lambda finding: (
            not finding.is_first,
            order.index(finding.kind),
            -finding.count,
            finding.text,
            finding.ranks,
        ),
    )


def _finding(
    kind: StatementKind, text: str, frame: CallSiteName | None, is_first: bool, group: Sequence[Statement]
) -> ToolFinding:
    return ToolFinding(
        kind=kind,
        ranks=tuple(sorted({statement.rank for statement in group if statement.rank is not None})),
        unidentified=tuple(sorted({_author(statement) for statement in group if statement.rank is None})),
        text=text,
        frame=frame,
        is_call=_is_call(group[0]),
        source=group[0].source,
        count=len(group) + sum(statement.repeated for statement in group),
        is_first=is_first,
    )


def _is_call(statement: Statement) -> bool:
    return statement.kind is StatementKind.TIMED_OUT or (
        isinstance(statement.fact, ProcessStacks) and bool(collective_of(statement.fact))
    )


def _author(statement: Statement) -> str:
    """Return a description of an author without a known rank."""
    if statement.group is not None and statement.group.rank is not None:
        return f"rank {statement.group.rank} of {statement.group.description or statement.group.uid or 'its group'}"
    if statement.local_rank is not None:
        return f"local rank {statement.local_rank}"
    return f"process {statement.pid}" if statement.pid is not None else statement.label or "an unnamed rank"


def _with_causes_first(statements: Sequence[Statement]) -> list[Statement]:
    """Correct the first failure of a launcher, whose times are whole seconds.

    If the rank listed first failed only because it lost a peer, another failure of the same second came first.
    """
    rows = [statement for statement in statements if _is_table_row(statement)]
    causes = {_file_and_second(statement) for statement in rows if _has_own_error(statement)}
    corrected = {
        _file_and_second(statement) for statement in rows if _has_lost_peer(statement) and _is_first(statement)
    } & causes
    return [
        _with_is_first(statement, _has_own_error(statement))
        if _is_table_row(statement) and _file_and_second(statement) in corrected
        else statement
        for statement in statements
    ]


def _file_and_second(statement: Statement) -> tuple[str, str]:
    """Return the file and the time, in whole seconds, of a row of a launcher's table."""
    return statement.source.path, statement.time


def _is_first(statement: Statement) -> bool:
    return isinstance(statement.fact, ProcessExit) and statement.fact.is_first


def _has_lost_peer(statement: Statement) -> bool:
    return isinstance(statement.fact, ProcessExit) and _LOST_PEER.search(statement.fact.error) is not None


def _has_own_error(statement: Statement) -> bool:
    """Return whether a rank raised an exception or was killed by a signal, but not by its launcher or a lost peer."""
    fact = statement.fact
    if not isinstance(fact, ProcessExit) or _has_lost_peer(statement):
        return False
    return bool(fact.error or (fact.signal and fact.signal not in _LAUNCHER_SIGNALS))


def _with_is_first(statement: Statement, is_first: bool) -> Statement:
    return (
        replace(statement, fact=replace(statement.fact, is_first=is_first))
        if isinstance(statement.fact, ProcessExit)
        else statement
    )


def _without_duplicates(statements: Sequence[Statement]) -> Iterable[Statement]:
    """Drop statements whose content another statement of the same rank contains."""
    raised = {
        (statement.rank, statement.source.path) for statement in statements if statement.kind is StatementKind.RAISED
    }
    with_stacks = {statement.source for statement in statements if statement.kind is StatementKind.STACKS}
    explained = {  # logs in which the message of the C++ exception follows
        _origin(statement)
        for statement in statements
        if statement.kind is StatementKind.CRASHED and statement.text.startswith("terminated by")
    }
    table_exits = {
        (statement.pid, statement.fact.outcome)
        for statement in statements
        if _is_table_row(statement) and isinstance(statement.fact, ProcessExit)
    }
    for statement in statements:
        if statement.text.startswith("gloo: ") and (statement.rank, statement.source.path) in raised:
            continue
        if statement.kind is StatementKind.CRASHED and statement.source in with_stacks:
            continue
        if (
            statement.kind is StatementKind.CRASHED
            and statement.text.startswith("terminate called")
            and _origin(statement) in explained
        ):
            continue
        if (
            isinstance(statement.fact, ProcessExit)
            and not _is_table_row(statement)
            and (statement.pid, statement.fact.outcome) in table_exits
        ):
            continue
        yield statement


def _origin(statement: Statement) -> tuple[str, str]:
    return statement.source.path, statement.label


def _is_table_row(statement: Statement) -> bool:
    """Return whether a statement is a row of torchrun's table, which has the rank, unlike the log line before it."""
    return statement.kind is StatementKind.ENDED and statement.text.startswith("rank ")


def describe(statement: Statement) -> str:
    """Return the text of a statement without the parts that differ between ranks."""
    fact = statement.fact
    if isinstance(fact, OperationTimeout) and fact.operation:
        number = f" #{fact.sequence}" if fact.sequence is not None else ""
        return f"{fact.operation}{number}{_of_group(statement)} timed out after {fact.timeout_ms / 1000:g} s"
    if isinstance(fact, ReportedProgress):
        return f"had enqueued up to #{fact.enqueued} and completed up to #{fact.completed}{_of_group(statement)}"
    if isinstance(fact, ProcessExit):
        # Only the first exit's exception is the cause. The exceptions of other ranks are separate statements.
        return f"ended with {fact.outcome}" + (f", after {_plain(fact.error)}" if fact.error and fact.is_first else "")
    if isinstance(fact, ProcessStacks):
        return f"crashed: {fact.crash}" if fact.crash else _describe_stacks(fact)
    return _plain(statement.text)


def _plain(text: str) -> str:
    if TITLE in text:  # the calls are reported once, for all ranks
        return text[: text.index(TITLE) + len(TITLE)]
    return _ADDRESS.sub("", _GLOO.sub("", text))


def _of_group(statement: Statement) -> str:
    group = statement.group
    return f" of {group.description or f'group {group.uid}'}" if group and (group.description or group.uid) else ""


def _describe_stacks(stacks: ProcessStacks) -> str:
    operation = collective_of(stacks)
    return f"in {operation}" if operation else "in no operation of torch.distributed"


def collective_of(stacks: ProcessStacks) -> str:
    """Return the function of torch.distributed that the shown thread is in, as called by the job; '' for none."""
    thread = shown_thread(stacks)
    return _collective_in(thread) if thread is not None else ""


def stacks_by_rank(statements: Iterable[Statement]) -> dict[int, ThreadStack]:
    """Return the thread to show for each rank with known stacks."""
    threads = {
        statement.rank: shown_thread(statement.fact)
        for statement in statements
        if isinstance(statement.fact, ProcessStacks)
    }
    return {rank: thread for rank, thread in threads.items() if rank is not None and thread is not None}


def shown_thread(stacks: ProcessStacks) -> ThreadStack | None:
    """Return the thread to show: the crashed thread, otherwise the main thread or the thread that blocks it."""
    if stacks.crash:
        return next(iter(stacks.threads), None)
    main = thread_to_show(stacks.threads, None)
    # Operations release the GIL while they wait, so the holder of the GIL does not block them.
    if main is None or _collective_in(main):
        return main
    return thread_to_show(stacks.threads, stacks.gil_holder)


def _collective_in(thread: ThreadStack) -> str:
    inside = itertools.takewhile(
        lambda frame: owner_of(frame.file, frame.function) is not FrameOwner.USER, thread.frames
    )
    return next((frame.function for frame in reversed([*inside]) if frame.file.endswith(_COLLECTIVES)), "")


def outside_of_collectives(statements: Iterable[Statement]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ranks outside of any torch.distributed operation, and the ranks inside an operation; each ascending.

    The ranks outside are the awaited ranks only if calls block, as with gloo.
    """
    stacks = {
        statement.rank: statement.fact
        for statement in statements
        if isinstance(statement.fact, ProcessStacks) and statement.rank is not None
    }
    inside = {rank for rank, fact in stacks.items() if collective_of(fact)}
    return tuple(sorted(stacks.keys() - inside)), tuple(sorted(inside))


def frame_of(statement: Statement) -> CallSiteName | None:
    """Return the innermost frame of the user's code in the stack of a statement; None without a stack."""
    fact = statement.fact
    if isinstance(fact, ReportedException | TimedOutCallStack):
        return user_frame(fact.frames)
    if not isinstance(fact, ProcessStacks):
        return None
    thread = shown_thread(fact)
    return user_frame(thread.frames) if thread is not None else None
