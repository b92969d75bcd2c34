"""Waits behind others through several worlds, as clauses of a sentence."""

from __future__ import annotations

from collections.abc import Callable

from otel_torchdist.naming import name_ranks
from otel_torchdist.tape.names.model import CallSiteName
from otel_torchdist.verdict.across import WaitBehind
from otel_torchdist.verdict.model import Verdict


def describe_waits_behind(
    verdict: Verdict, operation_text: Callable[[WaitBehind], str], frame_text: Callable[[CallSiteName], str]
) -> list[str]:
    """Who waits in the verdict's operation, and who waits for these in another world.

    Args:
        verdict: The verdict.
        operation_text: Describes the operation of a wait.
        frame_text: Describes a line.
    """
    clauses: list[str] = []
    for one in verdict.behind:
        is_first = one.operation_id == verdict.operation_id
        whom = ("it" if len(one.for_ranks) == 1 else "them") if is_first else name_ranks(one.for_ranks)
        where = "" if is_first else f" in {operation_text(one)}"
        line = f", called in {frame_text(one.call_site)}" if one.call_site is not None else ""
        clauses.append(f"{name_ranks(one.ranks)} {'waits' if len(one.ranks) == 1 else 'wait'} for {whom}{where}{line}")
    return clauses if verdict.ranks else []
