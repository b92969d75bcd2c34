"""The tool for stacks: those that ranks wrote last, or new ones on request."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from otel_torchdist.cli.mcp.answers import RankStacks, StacksAnswer, ThreadResult
from otel_torchdist.cli.mcp.questions import StacksQuestion
from otel_torchdist.cli.mcp.targets import RunTargets
from otel_torchdist.errors import RunError
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.rank_state.stacks import ThreadStack
from otel_torchdist.model.text import name_ranks
from otel_torchdist.model.times import iso_time
from otel_torchdist.node.job.requests.stacks import last_stack, offer_path, stacks_path
from otel_torchdist.node.job.requests.stacks_file import StacksFile, read_stacks
from otel_torchdist.node.job.runs.runs import Run
from otel_torchdist.system.files.others import changed_ns
from otel_torchdist.tape.reading.reader import TapeReader

ANSWER_S: Final = 5.0
"""Time for ranks to answer. They look for requests once a second, less often on a loaded machine."""
POLL_S: Final = 0.1
MAX_FRAMES: Final = 40
NOT_ALLOWED: Final = (
    "this server may not ask ranks for stacks: start it with --allow-stacks, or call stacks with ask=false for the "
    "stacks that they wrote last"
)
_OF_ANY_REQUEST: Final = 0
_SILENT: Final = (
    "it has not answered within 5 s: native code may hold the GIL, or its process is stopped; py-spy shows its stack"
)


@dataclass(frozen=True, slots=True)
class _Written:
    """Stacks beside a tape.

    Attributes:
        at_ns: When they were written, nanoseconds since the epoch; 0 if there are none.
        source: See `RankStacks`.
        threads: The threads.
    """

    at_ns: int
    source: str
    threads: tuple[ThreadStack, ...]


def stacks(targets: RunTargets, question: StacksQuestion, may_ask: bool) -> StacksAnswer:
    """Return the stacks of some ranks.

    Raises:
        RunError: A rank has no tape here, or ranks are to be asked and `may_ask` is False.
    """
    if question.ask and not may_ask:
        raise RunError(NOT_ALLOWED)
    with targets.opened(question.run, question.path) as target:
        if target.paths:
            raise RunError(
                f"{target.paths[0]}: only job directories and bundles have stacks; `diagnose` reads this path"
            )
        with targets.chosen(target) as chosen:
            tapes = _tapes_of(chosen.run, question.ranks)
            asked = _ask(tapes) if question.ask and chosen.run.copy is None else {}
            ranks = tuple(_stacks_of(tape, asked.get(rank), question.ask) for rank, tape in tapes.items())
            return StacksAnswer(f"{chosen.run.run_id:032x}" if chosen.run.run_id else None, ranks)


def _tapes_of(run: Run, ranks: list[int]) -> dict[int, TapeReader]:
    known = {tape.identity.rank: tape for tape in run.tapes}
    missing = sorted({*ranks}.difference(known))
    if missing:
        raise RunError(f"{name_ranks(missing)}: no tape on this node, which has {name_ranks(sorted(known))}")
    return {rank: known[rank] for rank in sorted({*ranks})}


def _ask(tapes: Mapping[int, TapeReader]) -> dict[int, tuple[ThreadStack, ...] | str]:
    """Ask the running ranks, and return the answer of each, or why there is none."""
    results: dict[int, tuple[ThreadStack, ...] | str] = {}
    pending: dict[int, tuple[StacksFile, int]] = {}
    for rank, tape in tapes.items():
        request = tape.request_stacks() if tape.is_alive() else 0
        if request:
            pending[rank] = StacksFile(tape.path, tape.owner), request
        else:
            results[rank] = "its tape belongs to another user" if tape.is_alive() else "its process has ended"
    deadline = time.monotonic() + ANSWER_S
    while pending and time.monotonic() < deadline:
        for rank, (file, request) in [*pending.items()]:
            answer = file.read(request)
            if answer is not None:
                results[rank] = tuple(answer)
                del pending[rank]
        time.sleep(POLL_S if pending else 0)
    return {**results, **dict.fromkeys(pending, _SILENT)}


def _stacks_of(tape: TapeReader, answer: tuple[ThreadStack, ...] | str | None, was_asked: bool) -> RankStacks:
    if isinstance(answer, tuple):
        written, problem = _Written(changed_ns(stacks_path(tape.path)), "asked", answer), None
    else:
        written = _last_written(tape)
        problem = answer
        if problem is None and was_asked:
            problem = "it is a copy, and cannot be asked"
        if problem is None and not written.at_ns:
            problem = "no stacks have been written: ranks write them when a stall is reported or when they are asked"
    return RankStacks(
        rank=tape.identity.rank,
        pid=tape.identity.pid,
        running=tape.is_alive(),
        written=iso_time(written.at_ns) if written.at_ns else None,
        source=written.source or None,
        problem=problem,
        threads=tuple(_thread(thread) for thread in written.threads),
    )


def _last_written(tape: TapeReader) -> _Written:
    """Return the newer stacks: those that the rank wrote, or the one that a signal made it write."""
    found = [_Written(0, "", ())]
    threads = read_stacks(tape.path, _OF_ANY_REQUEST, tape.owner)
    if threads is not None:
        found.append(_Written(changed_ns(stacks_path(tape.path)), "earlier", tuple(threads)))
    frames = last_stack(offer_path(tape.path), tape.owner)
    if frames:
        found.append(_Written(changed_ns(offer_path(tape.path)), "signal", (ThreadStack(0, "", frames),)))
    return max(found, key=lambda written: written.at_ns)


def _thread(stack: ThreadStack) -> ThreadResult:
    frames = tuple(_frame(frame) for frame in stack.frames[:MAX_FRAMES])
    more = len(stack.frames) - MAX_FRAMES
    return ThreadResult(
        stack.name, stack.thread, stack.is_locked, (*frames, f"and {more} outer frames") if more > 0 else frames
    )


def _frame(frame: CallSiteName) -> str:
    return f"{frame.function} at {frame.file}:{frame.line}"
