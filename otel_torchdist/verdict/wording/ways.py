"""Where the parties of a mismatch are, in words."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from otel_torchdist.model.names import CallSiteName
from otel_torchdist.naming import have, name_ranks
from otel_torchdist.verdict.wording.frames import at_line, describe_through
from otel_torchdist.world.mismatch import Field, Mismatch
from otel_torchdist.world.ways import CallSide, Ways

MAX_SIDES: Final = 3
"""Parties that a sentence lists."""


def describe_ways(mismatch: Mismatch, gone: Collection[int] = ()) -> str:
    """`rank 2 is in all_gather at evaluate, train.py:61, where ranks 0-1 are in …`; '' if all are in the same call.

    Args:
        mismatch: The calls.
        gone: Ranks that have ended: these were in their call.
    """
    ways = mismatch.ways
    if ways is None or not ways.differ or not _should_meet(mismatch):
        return ""
    has_labels = len({side.label for side in ways.sides}) > 1
    sides = zip(ways.sides, mismatch.parties, strict=True)
    line = _shared_line(ways)
    at = "" if line is None else f", all called{at_line(line)}"
    usual, *others = [
        _describe(side if has_labels else replace(side, label=""), ranks, gone, line is not None)
        for side, (_, ranks) in sides
    ]
    if not mismatch.has_majority:
        return f"ranks are in different calls: {', '.join([usual, *others][:MAX_SIDES])}{at}"
    ranks = mismatch.ranks
    return f"{', '.join(others[:MAX_SIDES])}, where {usual}{_left_out(ways, ranks)}{at}"


def _should_meet(mismatch: Mismatch) -> bool:
    """Whether calls at different places say by themselves that they do not match."""
    return mismatch.field is not Field.MEMBERS and not mismatch.operation_id.channel.is_point_to_point


def describe_ends(mismatch: Mismatch) -> str:
    """`, sent at forward, model.py:12, and received at backward, model.py:20`; '' for collectives."""
    sides = mismatch.ways.sides if mismatch.ways is not None else ()
    if not mismatch.operation_id.channel.is_point_to_point or mismatch.misfit is None or len(sides) != 2:
        return ""
    received, sent = (at_line(side.site) for side in sides)
    return f", sent{sent} and received{received}" if sent and received else ""


def _left_out(ways: Ways, ranks: tuple[int, ...]) -> str:
    if ways.left_out is None:
        return ""
    have_left_out = f"{name_ranks(ranks)} {have(ranks)} left out"
    if _line_alone(ways.left_out) == _line_alone(ways.sides[0]):
        return f", which {have_left_out}"
    return f": {have_left_out} {ways.left_out.operation}{_label(ways.left_out)}{at_line(ways.left_out.site)}"


def _line_alone(side: CallSide) -> CallSide:
    """A side without the function that its line calls: a library makes several calls from one line."""
    return side if side.site is None else replace(side, site=replace(side.site, through=""))


def describe_values(mismatch: Mismatch) -> list[str]:
    """`the dtype differs: int64 on ranks 0-1, float32 on rank 2`; nothing where the operations themselves differ."""
    if mismatch.field is Field.OPERATION:
        return []
    values = ", ".join(f"{text} on {name_ranks(ranks)}" for text, ranks in mismatch.parties[:MAX_SIDES])
    return [f"the {mismatch.field.value} differs: {values}"]


def describe_libraries(ways: Ways | None) -> list[str]:
    """`in evaluate it is called by torchmetrics' gather_all_tensors`, for lines that do not call torch themselves."""
    if ways is None or _shared_line(ways) is not None:
        return []  # the cause says it
    sites = [side.site for side in ways.sides if side.site is not None]
    found = {site.function: describe_through(site) for site in sites}
    return [f"in {function} it is called by {through}" for function, through in found.items() if through]


def common_line(ways: Ways | None) -> str:
    """` at forward, model.py:28`, if all parties are there; else ''."""
    if ways is None or ways.differ:
        return ""
    sites = {side.site for side in ways.sides}
    return at_line(sites.pop()) if len(sites) == 1 else ""


def _shared_line(ways: Ways) -> CallSiteName | None:
    """The only line of the program, as that which runs a trainer, whose functions of libraries differ; else None."""
    sites = [side.site for side in ways.sides if side.site is not None]
    lines = {replace(site, through="") for site in sites}
    is_shared = len(lines) == 1 < len(set(sites)) and len(sites) == len(ways.sides)
    return lines.pop() if is_shared else None


def _describe(side: CallSide, ranks: tuple[int, ...], gone: Collection[int], in_library: bool) -> str:
    """Where some ranks are; `in_library` gives the library's function, for all have the same line."""
    through = describe_through(side.site)
    where = (f" of {through}" if through else "") if in_library else at_line(side.site)
    are, were = ("is", "was") if len(ranks) == 1 else ("are", "were")
    return f"{name_ranks(ranks)} {were if {*ranks} <= {*gone} else are} in {side.operation}{_label(side)}{where}"


def _label(side: CallSide) -> str:
    return f" ({side.label})" if side.label else ""
