"""Sizes of an exchange that do not fit, in words: `rank 1 sends 3 rows to rank 2, which expects 5`."""

from __future__ import annotations

from otel_torchdist.world.part_sizes import COUNTED_IN_ROWS, Misfit


def describe_misfit(misfit: Misfit, operation: str) -> str:
    """Describe the sizes of two members that do not fit, in rows or elements if both count in the same ones."""
    unit = misfit.unit
    names = ("row", "rows") if operation in COUNTED_IN_ROWS else ("element", "elements")
    if not unit or misfit.sent % unit or misfit.expected % unit:
        unit, names = 1, ("byte", "bytes")
    sent, expected = misfit.sent // unit, misfit.expected // unit
    sends = f"rank {misfit.sender} sends {sent:,} {names[sent != 1]} to"
    if misfit.sender == misfit.receiver:
        return f"{sends} itself and expects {expected:,}"
    return f"{sends} rank {misfit.receiver}, which expects {expected:,}{_more(misfit)}"


def _more(misfit: Misfit) -> str:
    """Whether other pairs do not fit either, and which rank is part of all of them."""
    if misfit.pairs < 2:
        return ""
    alone = f", all of them with rank {misfit.ranks[0]}" if len(misfit.ranks) == 1 else ""
    return f" ({misfit.pairs} pairs do not fit{alone})"
