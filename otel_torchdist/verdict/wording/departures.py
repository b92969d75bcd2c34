"""Ranks that exited while others needed them, in words."""

from __future__ import annotations

from otel_torchdist.naming import name_ranks
from otel_torchdist.verdict.departures import is_about_failure
from otel_torchdist.verdict.model import Verdict
from otel_torchdist.verdict.roll_call import Standing


def describe_exit(verdict: Verdict, rank: int) -> str:
    """`rank 2 exited with code 3`; the code is not known before its process has ended."""
    return f"rank {rank} {_way(verdict.exit_codes.get(rank))}"


def describe_departure(verdict: Verdict, operation: str) -> str:
    """`rank 2 exited with code 3 before all_reduce (…), which failed on ranks 0-1,3 with RuntimeError`.

    '' for any other verdict.
    """
    if not is_about_failure(verdict):
        return ""
    failed = verdict.roll.ranks(Standing.FAILED)
    failures = sorted({verdict.failures[rank] for rank in failed if rank in verdict.failures})
    how = f" with {', '.join(failures)}" if failures else ""
    return f"{_departed(verdict)} before {operation}, which failed on {name_ranks(failed)}{how}"


def _departed(verdict: Verdict) -> str:
    ways = {_way(verdict.exit_codes.get(rank)) for rank in verdict.ranks}
    way = ways.pop() if len(ways) == 1 else "have exited"
    return f"{name_ranks(verdict.ranks)} {way.replace('has ', 'have ') if len(verdict.ranks) > 1 else way}"


def _way(code: int | None) -> str:
    if code is None:
        return "has finished"
    return f"exited with code {code}" if code else "has exited cleanly"
