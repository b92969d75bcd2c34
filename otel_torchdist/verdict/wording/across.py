"""Waits behind others through several worlds, as clauses of a sentence."""

from __future__ import annotations

from otel_torchdist.naming import name_ranks
from otel_torchdist.verdict.model import Verdict
from otel_torchdist.verdict.wording.frames import at_line
from otel_torchdist.verdict.wording.operations import describe_operation


def describe_waits_behind(verdict: Verdict) -> list[str]:
    """Say who waits in the verdict's operation, and who waits for these in another world."""
    clauses: list[str] = []
    for one in verdict.behind:
        is_first = one.operation_id == verdict.operation_id
        whom = ("it" if len(one.for_ranks) == 1 else "them") if is_first else name_ranks(one.for_ranks)
        where = "" if is_first else f" in {describe_operation(one.operation, one.group, one.operation_id)}"
        wait = "waits" if len(one.ranks) == 1 else "wait"
        clauses.append(f"{name_ranks(one.ranks)} {wait} for {whom}{where}{at_line(one.call_site)}")
    return clauses if verdict.ranks else []
