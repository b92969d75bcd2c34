"""How well the end of a call is known, decided once for each `How`, for all that read tapes.

Sets of ends are tuples: `in` compares their members by identity, where a set would call Python's `Enum.__hash__`.
"""

from __future__ import annotations

import enum
from typing import Final

from otel_torchdist.model.kinds import How


class Known(enum.Enum):
    """How exactly an end is known."""

    CALLED = enum.auto()
    """The call itself was seen to return."""
    AWAITED = enum.auto()
    """A wait was seen to return."""
    DATED = enum.auto()
    """The device has dated it, on its own clock."""
    NOTICED = enum.auto()
    """It was noticed some time later."""
    ASSUMED = enum.auto()
    """Nothing but that nobody follows the call any more: when it ends, or has ended, is unknown."""
    RAISED = enum.auto()
    """The call raised: for this rank it was over then, and nothing follows for others."""


def known_of(how: How) -> Known:
    """Classify an end."""
    match how:
        case How.CALL:
            return Known.CALLED
        case How.WAIT | How.CALLBACK:
            return Known.AWAITED
        case How.EVENT:
            return Known.DATED
        case How.POLL | How.WATCHDOG:
            return Known.NOTICED
        case How.UNTRACKED | How.ABANDONED:
            return Known.ASSUMED
        case How.FAILED:
            return Known.RAISED


def _ends(*wanted: Known) -> tuple[How, ...]:
    return tuple(how for how in How if known_of(how) in wanted)


AWAITED: Final = _ends(Known.AWAITED)
BLOCKING: Final = _ends(Known.CALLED, Known.AWAITED)
"""Ends until which a thread of the program was blocked."""
EXACT: Final = _ends(Known.CALLED, Known.AWAITED, Known.DATED)
"""Known well enough for durations."""
COARSE: Final = _ends(Known.NOTICED)
SUCCEEDED: Final = (*EXACT, *COARSE)
"""The call has done what it should."""
ASSUMED: Final = _ends(Known.ASSUMED)
RAISED: Final = _ends(Known.RAISED)
UNMET: Final = (*ASSUMED, *RAISED)
"""Says nothing about when the members of a group met."""
