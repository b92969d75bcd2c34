"""Finds the line at which the call paths of mismatched calls diverge.

This line explains more than tensor shapes: calls from different lines were never meant to pair up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, TypeAlias

from otel_torchdist.model.calls import Arrival
from otel_torchdist.model.names import CallSiteName

Frames: TypeAlias = tuple[CallSiteName, ...]
_CallPath: TypeAlias = tuple[Frames, str]
"""Call path and purpose of a call. FSDP calls the collectives of all its units from one line."""
_NEXT_ITERATION: Final = 1 << 31
"""Added to lines before the current line, which a loop reaches only in its next iteration. Exceeds any line number."""


@dataclass(frozen=True, slots=True)
class CallSide:
    """The call of one party of a mismatch.

    Attributes:
        operation: Name of the call.
        label: Its purpose; see `OperationView`.
        site: The line where its path differs from the others' paths; None if unknown.
    """

    operation: str
    label: str = ""
    site: CallSiteName | None = None


@dataclass(frozen=True, slots=True)
class Divergence:
    """The call of each party of a mismatch, with the line at which its path differs.

    Attributes:
        sides: One call for each party, in the order of the parties.
        left_out: The call of the largest party that the others skipped; None if unknown.
    """

    sides: tuple[CallSide, ...]
    left_out: CallSide | None = None

    @property
    def differ(self) -> bool:
        """Whether the parties call from different lines, or for different purposes."""
        known = {side for side in self.sides if side.site is not None}
        return len(known) == len(self.sides) > 1


def divergence_of(
    history: Sequence[Mapping[int, Arrival]], parties: Sequence[tuple[str, tuple[int, ...]]]
) -> Divergence:
    """Return the call paths of the parties of a mismatch.

    Args:
        history: Known calls by rank at each position, up to the position of the mismatch.
        parties: The parties, the largest first.
    """
    ranks = [_typical(history[-1], ranks) for _, ranks in parties]
    usual, *others = ranks
    calls = [history[-1][rank] for rank in ranks]
    pairs = [_diverging_lines(calls[0].frames, call.frames) for call in calls[1:]]
    sites = [pairs[0][0] if pairs else None, *(line for _, line in pairs)]
    sides = tuple(_side(call, site) for call, site in zip(calls, sites, strict=True))
    passed = {_left_out(history, usual, other) for other in others}
    return Divergence(sides, passed.pop() if len(passed) == 1 else None)


def _left_out(history: Sequence[Mapping[int, Arrival]], usual: int, other: int) -> CallSide | None:
    """Return the call of one rank that another rank skipped, at the position where their paths diverge."""
    pairs = [(calls[usual], calls[other]) if usual in calls and other in calls else None for calls in history]
    known = [pair for pair in pairs[len(pairs) - pairs[::-1].index(None) :] if pair] if None in pairs else pairs
    paths = [(_call_path(pair[0]), _call_path(pair[1])) for pair in known if pair is not None]
    position = len(paths) - 1
    while position > 0 and paths[position - 1][0] != paths[position - 1][1]:
        # Ranks may legally call from different lines. Going back continues only while the paths differ in the same way
        # as at the mismatch, or one rank is a call ahead.
        if paths[position - 1] != paths[-1] and paths[position - 1][1] != paths[position][0]:
            break
        position -= 1
    pair = known[position]
    assert pair is not None
    if not _has_skipped(pair[1], pair[0], [before[0] for before in known[:position] if before is not None]):
        return None
    return _side(pair[0], _diverging_lines(pair[0].frames, pair[1].frames)[0])


def _side(arrival: Arrival, site: CallSiteName | None) -> CallSide:
    operation = arrival.signature.operation if arrival.signature is not None else "operation"
    return CallSide(operation, arrival.label, site)


def _typical(arrivals: Mapping[int, Arrival], ranks: Sequence[int]) -> int:
    """Return a rank with the most frequent path of its party."""
    most = Counter(arrivals[rank].frames for rank in ranks).most_common(1)[0][0]
    return next(rank for rank in ranks if arrivals[rank].frames == most)


def _diverging_lines(first: Frames, second: Frames) -> tuple[CallSiteName | None, CallSiteName | None]:
    """Return the innermost lines at which two paths differ, or the two callers of a common helper."""
    for index, (first_frame, second_frame) in enumerate(zip(first, second, strict=False)):
        callers = _without_library(first[index + 1 :]), _without_library(second[index + 1 :])
        if not _is_same_function(first_frame, second_frame) or callers[0] == callers[1] or not all(callers):
            return first_frame, second_frame
    return next(iter(first), None), next(iter(second), None)


def _has_skipped(other: Arrival, usual: Arrival, before: Sequence[Arrival]) -> bool:
    """Return whether a rank skipped the call of the others, judged by line order or by earlier loop iterations."""
    if not other.frames or not usual.frames:
        return False
    depth = _shared_depth(other.frames, usual.frames)
    frame, usual_frame = _frame_at(other.frames, depth), _frame_at(usual.frames, depth)
    if frame is not None and usual_frame is not None and _is_same_function(frame, usual_frame):
        last = before[-1].frames if before else ()
        from_line = _line_in(last, frame, depth, _shared_depth(last, other.frames))
        if frame.line != from_line or frame == other.frames[0]:
            return _order(usual_frame.line, from_line) < _order(frame.line, from_line)
        # A callee may make several calls, so the rank may still be inside the call at that line.
    calls = [(call.frames, call.label) for call in (*before, usual, other)]
    return _skips(calls[:-2], *calls[-2:])


def _skips(before: Sequence[_CallPath], usual: _CallPath, other: _CallPath) -> bool:
    """Return whether `other` came after `usual` in earlier iterations, and never directly after the previous call."""
    positions = [position for position, path in enumerate(before) if path == usual]
    if not positions or other == usual or other not in before[positions[-1] + 1 :]:
        return False
    return (before[-1], other) not in pairwise(before)


def _line_in(frames: Frames, function: CallSiteName, depth: int, shared: int) -> int:
    """Return the line of a function at which an earlier call was made; 0 if another function made it."""
    frame = _frame_at(frames, depth)
    return frame.line if frame is not None and shared >= depth and _is_same_function(frame, function) else 0


def _order(line: int, from_line: int) -> int:
    return line if line > from_line else line + _NEXT_ITERATION


def _shared_depth(first: Frames, second: Frames) -> int:
    """Return the number of frames shared by two paths, from the outermost on."""
    depth = 0
    for first_frame, second_frame in zip(
        reversed(_without_library(first)), reversed(_without_library(second)), strict=False
    ):
        if first_frame != second_frame:
            break
        depth += 1
    return depth


def _frame_at(frames: Frames, depth: int) -> CallSiteName | None:
    return frames[-1 - depth] if depth < len(frames) else None


def _call_path(arrival: Arrival) -> _CallPath:
    return _without_library(arrival.frames), arrival.label


def _without_library(frames: Frames) -> Frames:
    """Return the frames without the names of library functions that they call."""
    return tuple(replace(frame, through="") if frame.through else frame for frame in frames)


def _is_same_function(first: CallSiteName, second: CallSiteName) -> bool:
    return (first.function, first.file) == (second.function, second.file)
