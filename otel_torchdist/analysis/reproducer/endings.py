"""Chooses how the ranks that a verdict names end in the script, and writes the Python for it."""

from __future__ import annotations

import builtins
import signal
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from otel_torchdist.analysis.reproducer.calls import literal
from otel_torchdist.analysis.reproducer.script import End, Ending
from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.model.reports.verdict_kinds import VerdictKind

FOREVER_S: Final = "1_000_000"
SUDDEN: Final = frozenset({Ending.KILLS_ITSELF, Ending.RAISES, Ending.EXITS_AT_ONCE})
"""Endings that the other ranks notice. The script delays them until the other ranks wait in their calls."""
_UNTIL_OTHERS_WAIT_S: Final = 3
_EXCEPTIONS: Final[Mapping[str, type[BaseException]]] = MappingProxyType(
    {
        name: value
        for name, value in vars(builtins).items()
        if isinstance(value, type) and issubclass(value, Exception) and not issubclass(value, Warning)
    }
)
_SPECIAL_CONSTRUCTORS: Final = ("UnicodeDecodeError", "UnicodeEncodeError", "UnicodeTranslateError", "ExceptionGroup")
"""Exceptions whose constructor needs more than one text."""
_UNKNOWN: Final = End(Ending.KILLS_ITSELF)


def end_of(verdict: Verdict, rank: int, remarks: tuple[str, ...]) -> End:
    """Return the script's ending for a rank of the job that does not reach the next call.

    Args:
        verdict: The verdict.
        rank: The job's rank.
        remarks: The rank's position in the job, as lines of text.
    """
    if rank not in verdict.ranks:
        return End(Ending.STAYS_AWAY, remarks=remarks)
    match verdict.kind:
        case VerdictKind.FROZEN:
            return End(Ending.STOPS, remarks=remarks)
        case VerdictKind.DEAD:
            return replace(_death(verdict, rank), remarks=remarks)
        case (
            VerdictKind.SHARED_GROUP
            | VerdictKind.MISMATCHED
            | VerdictKind.CIRCULAR
            | VerdictKind.UNMATCHED
            | VerdictKind.ABSENT
            | VerdictKind.RENDEZVOUS
            | VerdictKind.DEVICE
            | VerdictKind.STUCK
            | VerdictKind.TRANSPORT
            | VerdictKind.UNREACHABLE
            | VerdictKind.UNKNOWN
        ):
            return End(Ending.STAYS_AWAY, remarks=remarks)


def is_assumed(verdict: Verdict) -> bool:
    """Return whether a dead rank's signal or exit status is unknown, so that `SIGKILL` is assumed."""
    return verdict.kind is VerdictKind.DEAD and any(_death(verdict, rank) == _UNKNOWN for rank in verdict.ranks)


def statements_of(end: End) -> list[str]:
    """Return the statements that end a rank. All names in them are from our tables."""
    before = [f"time.sleep({_UNTIL_OTHERS_WAIT_S})  # until the others wait"] if end.ending in SUDDEN else []
    return [*before, _statement(end)]


def _statement(end: End) -> str:
    match end.ending:
        case Ending.STAYS_AWAY:
            return f"time.sleep({FOREVER_S})"
        case Ending.EXITS:
            return "raise SystemExit"
        case Ending.EXITS_AT_ONCE:
            return f"os._exit({end.exit_code})"
        case Ending.RAISES:
            return _raised(end.exception)
        case Ending.STOPS:
            return "os.kill(os.getpid(), signal.SIGSTOP)"
        case Ending.KILLS_ITSELF:
            return f"os.kill(os.getpid(), {_name(end.signal or signal.SIGKILL)})"


def _death(verdict: Verdict, rank: int) -> End:
    death = verdict.first.deaths.get(rank) if verdict.first is not None else None
    if death is not None and death.signal:
        return End(Ending.KILLS_ITSELF, signal=death.signal)
    failure = verdict.failures.get(rank, "")
    if failure:
        return End(Ending.RAISES, exception=failure)
    if death is not None and death.exit_code is not None:
        return End(Ending.EXITS_AT_ONCE, exit_code=death.exit_code)
    return _UNKNOWN


def _raised(exception: str) -> str:
    if exception in _EXCEPTIONS and exception not in _SPECIAL_CONSTRUCTORS:
        return f'raise {exception}("as in the job")'
    return f"raise RuntimeError({literal(exception)})"


def _name(number: int) -> str:
    try:
        return f"signal.{signal.Signals(number).name}"
    except ValueError:
        return str(number)
