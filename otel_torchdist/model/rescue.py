"""Whether a rank has saved its state in a stall, and of which step, in one live word of its tape."""

from __future__ import annotations

import enum
from dataclasses import dataclass

_BITS = 4
_MAX_STEP = (1 << 47) - 1


class RescueState(enum.IntEnum):
    """How far a rescue has come; the value is on the tape."""

    NONE = 0
    """It has not begun."""
    RUNNING = 1
    SAVED = 2
    """The user's function has returned, and nothing had changed meanwhile."""
    IN_OPTIMIZER = 3
    """Refused: a thread was in the step of an optimizer, so parameters may be half updated."""
    RAISED = 4
    """The user's function has raised."""
    WENT_ON = 5
    """The rank did not wait any more by the end of it, so what was saved may be of two steps."""
    TOO_LATE = 6
    """It took longer than allowed."""
    DEAD = 7
    """The rank died before; no rank writes this itself."""

    @property
    def is_final(self) -> bool:
        """Whether nothing more comes."""
        match self:
            case RescueState.NONE | RescueState.RUNNING:
                return False
            case (
                RescueState.SAVED
                | RescueState.IN_OPTIMIZER
                | RescueState.RAISED
                | RescueState.WENT_ON
                | RescueState.TOO_LATE
                | RescueState.DEAD
            ):
                return True


@dataclass(frozen=True, slots=True)
class Rescue:
    """The rescue of one rank.

    Attributes:
        state: How far it has come.
        step: The training step of what was saved, as the user's function counts, or else as the tape does.
    """

    state: RescueState = RescueState.NONE
    step: int = 0

    def encode(self) -> int:
        """Pack it; a step that does not fit is clipped."""
        return max(0, min(self.step, _MAX_STEP)) << _BITS | self.state

    @classmethod
    def decode(cls, value: int) -> Rescue:
        """Unpack it; a state of a later version counts as none."""
        state = value & ((1 << _BITS) - 1)
        return cls(RescueState(state), value >> _BITS) if state in RescueState._value2member_map_ else cls()


NO_RESCUE = Rescue()
