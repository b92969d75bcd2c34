"""What a script says about itself: what was found in the job, what stands for what, and what was left out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from otel_torchdist.analysis.reproducer.cast import Cast, Involved
from otel_torchdist.analysis.reproducer.endings import is_assumed
from otel_torchdist.analysis.reproducer.steps import Substituted
from otel_torchdist.analysis.reproducer.tails import Tails
from otel_torchdist.judge.verdict.roll_call import Standing
from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.judge.verdict.wording.places import describe_place
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.naming import name_ranks
from otel_torchdist.model.verdict_kinds import VerdictKind

MOST_FRAMES: Final = 6
_FRAME: Final = re.compile(r'^  File "(.*)", (line \d+, in .*)$')


@dataclass(frozen=True, slots=True)
class ScriptOrigin:
    """Where a verdict and the calls behind it come from.

    Attributes:
        source: What was read: a run and its time, or files.
        sentence: The verdict's sentence.
        world_size: Ranks of the job; 0 if that is not known.
        versions: Of the programs that have read it.
    """

    source: str
    sentence: str
    world_size: int
    versions: str


def facts_about(
    involved: Involved, tails: Tails, cast: Cast, substituted: Substituted, origin: ScriptOrigin, sequence: int
) -> Iterator[str]:
    """Yield a paragraph for each thing that a reader must know before running the script.

    Args:
        involved: What the verdict is about.
        tails: The last calls of the ranks.
        cast: Who plays whom.
        substituted: What is different from the job.
        origin: Where all this comes from.
        sequence: Where the script hangs; the job's own position is in the sentence.
    """
    verdict = involved.verdict
    yield f"The job ({origin.source}): {origin.sentence}."
    yield _ranks(cast, origin.world_size)
    yield " ".join(_calls(verdict, sequence))
    changes = [*_changes(substituted)]
    if tails.several_threads:
        changes.append("Several threads of a rank were in calls: here it makes the first of them.")
    if cast.dropped:
        changes.append(f"Left out, because few others did the same: {name_ranks(cast.dropped)}.")
    if changes:
        yield " ".join(changes)
    yield " ".join(_outcome(verdict))
    yield f"Written by {origin.versions}."


def remarks_on(verdict: Verdict, rank: int) -> Iterator[str]:
    """Yield where a rank of the job was that does not come to the next call here."""
    if rank not in verdict.ranks:
        has_left = verdict.roll.standings.get(rank) is Standing.OUT
        yield f"Rank {rank} had come out of it." if has_left else f"Rank {rank} was elsewhere."
        return
    place = verdict.places.get(rank)
    clause = describe_place(place, f"rank {rank}") if place is not None else ""
    yield f"The job's {clause}." if clause else "What it did instead is not recorded."
    if place is not None:
        yield from [_short(line) for line in place.stacktrace.splitlines() if line.strip()][-MOST_FRAMES:]


def _short(line: str) -> str:
    """A line of a stack without the folders of the file, which say more about the user than about the hang."""
    match = _FRAME.match(line)
    return f"    {PurePath(match[1]).name}, {match[2]}" if match else line


def _ranks(cast: Cast, world_size: int) -> str:
    kept = cast.kept
    if kept == tuple(range(world_size)):
        return "Ranks have the numbers that they had in the job."
    here = name_ranks(range(len(kept)))
    verb = "is" if len(kept) == 1 else "are"
    stand_in = [
        f"Rank {place} here stands for {name_ranks(ranks)}."
        for place, ranks in sorted(cast.stand_for.items())
        if len(ranks) > 1
    ]
    return " ".join([f"{here.capitalize()} here {verb} {name_ranks(kept)} of the job, in this order.", *stand_in])


def _calls(verdict: Verdict, sequence: int) -> Iterator[str]:
    yield "Only the last calls of the groups in question are repeated."
    where = verdict.operation_id if verdict.mismatch is None else verdict.mismatch.operation_id
    if where.sequence != sequence and where.channel.kind is RecordKind.OPERATION:
        yield f"So what was number {where.sequence} of its group is number {sequence} here."
    if verdict.group is not None and verdict.group.name.backend not in ("", "gloo", "cpu:gloo"):
        yield f"The job used {verdict.group.name.backend}; here it is gloo, with tensors on the CPU."


def _changes(substituted: Substituted) -> Iterator[str]:
    yield from _instead("operation", substituted.operations)
    yield from _instead("dtype", substituted.dtypes)
    yield from _instead("reduce op", substituted.reduce_ops)
    if substituted.sizes.factor > 1:
        yield f"Tensors are flat and about {substituted.sizes.factor} times smaller, to fit into a gigabyte together."
    if substituted.without_shapes:
        yield "Shapes of some calls are not recorded: four elements are assumed."
    if substituted.without_reduce_ops:
        yield "Reduce ops are not recorded: sum is assumed."
    if substituted.without_splits:
        yield "How some exchanges are split is not recorded: even parts are assumed."
    if substituted.without_roots:
        yield "Roots of some calls are not recorded or not among these ranks: the first member is assumed."


def _instead(what: str, replaced: Mapping[str, str]) -> Iterator[str]:
    for original, other in sorted(replaced.items()):
        yield f"{other} stands for the {what} {original}, which gloo does not have everywhere."


def _outcome(verdict: Verdict) -> Iterator[str]:
    if verdict.kind is VerdictKind.DEAD:
        if is_assumed(verdict):
            yield "How the rank died is not recorded: SIGKILL is assumed."
        yield "torchrun ends the other ranks when one has died, so this does not hang for long."
        return
    if verdict.kind is VerdictKind.MISMATCHED:
        yield "Where calls do not match, gloo may report an error, or abort a process, instead of hanging."
    yield "What hangs does so until gloo's timeout, 30 minutes; Ctrl-C ends it before."
