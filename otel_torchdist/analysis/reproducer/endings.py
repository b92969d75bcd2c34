"""How the ranks that a verdict names end in the script, and the Python for that."""

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
from otel_torchdist.model.verdict_kinds import VerdictKind

FOREVER_S: Final = "1_000_000"
SUDDEN: Final = frozenset({Ending.KILLS_ITSELF, Ending.RAISES, Ending.EXITS_AT_ONCE})
"""Ends that the others notice: they should be in their calls by then."""
_UNTIL_OTHERS_WAIT_S: Final = 3
_EXCEPTIONS: Final[Mapping[str, type[BaseException]]] = MappingProxyType(
    {
        name: value
        for name, value in vars(builtins).items()
        if isinstance(value, type) and issubclass(value, Exception) and not issubclass(value, Warning)
    }
)
_TAKE_MORE: Final = ("UnicodeDecodeError", "UnicodeEncodeError", "UnicodeTranslateError", "ExceptionGroup")
"""Exceptions that cannot be made from one text."""
_UNKNOWN: Final = End(Ending.KILLS_ITSELF)


def end_of(verdict: Verdict, rank: int, remarks: tuple[str, ...]) -> End:
    """How a rank of the job ends that does not come to the next call.

    Args:
        verdict: The verdict.
        rank: The rank.
        remarks: Where it was, as lines of text.
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
    """Whether it is not known how one of the dead ranks ended, so that `SIGKILL` is assumed."""
    return verdict.kind is VerdictKind.DEAD and any(_death(verdict, rank) == _UNKNOWN for rank in verdict.ranks)


def statements_of(end: End) -> list[str]:
    """The Python with which a rank ends. Every name in it is from a table of ours."""
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
    if exception in _EXCEPTIONS and exception not in _TAKE_MORE:
        return f'raise {exception}("as in the job")'
    return f"raise RuntimeError({literal(exception)})"


def _name(number: int) -> str:
    try:
        return f"signal.{signal.Signals(number).name}"
    except ValueError:
        return str(number)
