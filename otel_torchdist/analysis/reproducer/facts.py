"""Writes the comments at the top of a script: the verdict on the job, replacements, and omissions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from otel_torchdist.analysis.reproducer.endings import is_assumed
from otel_torchdist.analysis.reproducer.rank_mapping import RankMapping, VerdictScope
from otel_torchdist.analysis.reproducer.steps import Substitutions
from otel_torchdist.analysis.reproducer.tails import Tails
from otel_torchdist.judge.verdict.roll_call import Standing
from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.judge.verdict.wording.places import describe_place
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.text import name_ranks

MAX_FRAMES: Final = 6
_FRAME: Final = re.compile(r'^  File "(.*)", (line \d+, in .*)$')


@dataclass(frozen=True, slots=True)
class ScriptOrigin:
    """The origin of a verdict and of the calls behind it.

    Attributes:
        source: The run and its time, or the files.
        sentence: The verdict's sentence.
        world_size: Number of ranks in the job; 0 if unknown.
        versions: Versions of the programs that wrote the script.
    """

    source: str
    sentence: str
    world_size: int
    versions: str


def facts_about(
    scope: VerdictScope,
    tails: Tails,
    mapping: RankMapping,
    substitutions: Substitutions,
    origin: ScriptOrigin,
    sequence: int,
) -> Iterator[str]:
    """Yield the paragraphs to read before running the script.

    Args:
        scope: The ranks and channels that the verdict involves.
        tails: The last calls of the ranks.
        mapping: The mapping between the job's ranks and the script's ranks.
        substitutions: The differences from the job.
        origin: The origin of the verdict.
        sequence: Position of the hang in the script. The verdict's sentence has the position in the job.
    """
    verdict = scope.verdict
    yield f"The job ({origin.source}): {origin.sentence}."
    yield _ranks(mapping, origin.world_size)
    yield " ".join(_calls(verdict, sequence))
    changes = [*_changes(substitutions)]
    if tails.several_threads:
        changes.append("Several threads of a rank were in calls: here the rank hangs in the first of these calls.")
    if mapping.dropped:
        changes.append(f"Left out because few other ranks did the same: {name_ranks(mapping.dropped)}.")
    if changes:
        yield " ".join(changes)
    yield " ".join(_outcome(verdict))
    yield f"Written by {origin.versions}."


def remarks_on(verdict: Verdict, rank: int) -> Iterator[str]:
    """Yield lines on the position in the job of a rank that does not reach the script's next call."""
    if rank not in verdict.ranks:
        has_left = verdict.roll.standings.get(rank) is Standing.OUT
        yield f"Rank {rank} had left the operation." if has_left else f"Rank {rank} was elsewhere."
        return
    place = verdict.places.get(rank)
    clause = describe_place(place, f"rank {rank}") if place is not None else ""
    yield f"The job's {clause}." if clause else "The rank's position is not recorded."
    if place is not None:
        yield from [_short(line) for line in place.stacktrace.splitlines() if line.strip()][-MAX_FRAMES:]


def _short(line: str) -> str:
    """Return a stack line without the folders of the file, which reveal more about the user than about the hang."""
    match = _FRAME.match(line)
    return f"    {PurePath(match[1]).name}, {match[2]}" if match else line


def _ranks(mapping: RankMapping, world_size: int) -> str:
    kept = mapping.kept
    if kept == tuple(range(world_size)):
        return "Ranks are numbered as in the job."
    script_ranks = name_ranks(range(len(kept)))
    verb = "is" if len(kept) == 1 else "are"
    represented = [
        f"Rank {place} here stands for {name_ranks(ranks)}."
        for place, ranks in sorted(mapping.stand_for.items())
        if len(ranks) > 1
    ]
    return " ".join(
        [f"{script_ranks.capitalize()} here {verb} {name_ranks(kept)} of the job, in this order.", *represented]
    )


def _calls(verdict: Verdict, sequence: int) -> Iterator[str]:
    yield "Only the last calls of the involved groups are repeated."
    stalled = verdict.operation_id if verdict.mismatch is None else verdict.mismatch.operation_id
    if stalled.sequence != sequence and stalled.channel.kind is RecordKind.OPERATION:
        yield f"So sequence {stalled.sequence} of the job is sequence {sequence} here."
    if verdict.group is not None and verdict.group.name.backend not in ("", "gloo", "cpu:gloo"):
        yield f"The job used {verdict.group.name.backend}; here it is gloo, with tensors on the CPU."


def _changes(substitutions: Substitutions) -> Iterator[str]:
    yield from _replacements("operation", substitutions.operations)
    yield from _replacements("dtype", substitutions.dtypes)
    yield from _replacements("reduce op", substitutions.reduce_ops)
    if substitutions.sizes.factor > 1:
        factor = substitutions.sizes.factor
        yield f"Tensors are flat and about {factor} times smaller, so that all fit into one gigabyte."
    if substitutions.without_shapes:
        yield "Shapes of some calls are not recorded: four elements are assumed."
    if substitutions.without_reduce_ops:
        yield "Reduce ops are not recorded: sum is assumed."
    if substitutions.without_splits:
        yield "The split sizes of some exchanges are not recorded: even parts are assumed."
    if substitutions.without_roots:
        yield "Roots of some calls are not recorded or not among these ranks: the first member is assumed."


def _replacements(kind: str, replaced: Mapping[str, str]) -> Iterator[str]:
    for original, substitute in sorted(replaced.items()):
        yield f"{substitute} replaces the {kind} {original}, which gloo does not always support."


def _outcome(verdict: Verdict) -> Iterator[str]:
    if verdict.kind is VerdictKind.DEAD:
        if is_assumed(verdict):
            yield "The rank's signal or exit code is not recorded: SIGKILL is assumed."
        yield "torchrun ends the other ranks when one dies, so the script does not hang for long."
        return
    if verdict.kind is VerdictKind.MISMATCHED:
        yield "If calls do not match, gloo may raise an error or abort a process instead of hanging."
    yield "The script hangs until gloo's timeout of 30 minutes; press Ctrl-C to end it earlier."
