"""Ranks that exited while others needed them, in words."""

from __future__ import annotations

from otel_torchdist.model.lives import name_signal
from otel_torchdist.model.verdict_kinds import VerdictKind
from otel_torchdist.naming import name_ranks
from otel_torchdist.verdict.departures import is_about_failure, names_departed
from otel_torchdist.verdict.model import Verdict
from otel_torchdist.verdict.roll_call import Standing


def describe_exit(verdict: Verdict, rank: int) -> str:
    """`rank 2 exited with code 3`; the code is not known before its process has ended."""
    return f"rank {rank} {_way(verdict, rank)}"


def describe_departure(verdict: Verdict, operation: str, age: str) -> str:
    """`rank 2 exited with code 3 before all_reduce (…), which failed on ranks 0-1,3 with RuntimeError`.

    Or `…, which has been blocked for 12.0 s` while the others wait; '' for any other verdict.

    Args:
        verdict: The verdict.
        operation: Its operation, in words.
        age: How long the first rank has waited.
    """
    if is_about_failure(verdict):
        failed = verdict.roll.ranks(Standing.FAILED)
        failures = sorted({verdict.failures[rank] for rank in failed if rank in verdict.failures})
        how = f" with {', '.join(failures)}" if failures else ""
        return f"{_departed(verdict)} before {operation}, which failed on {name_ranks(failed)}{how}"
    is_known = verdict.kind is VerdictKind.ABSENT and names_departed(verdict)
    return f"{_departed(verdict)} before {operation}, which has been blocked for {age}" if is_known else ""


def _departed(verdict: Verdict) -> str:
    ways = {_way(verdict, rank) for rank in verdict.ranks}
    way = ways.pop() if len(ways) == 1 else "have exited"
    return f"{name_ranks(verdict.ranks)} {way.replace('has ', 'have ') if len(verdict.ranks) > 1 else way}"


def _way(verdict: Verdict, rank: int) -> str:
    code, asked = verdict.exit_codes.get(rank), verdict.asked.get(rank)
    after = f" after {name_signal(asked)}" if asked else ""
    if code is None:
        return f"has finished{after}"
    return f"exited with code {code}{after}" if code else f"has exited with code 0{after}"
