"""The state of a rank's rescue during a stall, packed into one live word of its tape."""

from __future__ import annotations

import enum
from dataclasses import dataclass

_BITS = 4
_MAX_STEP = (1 << 47) - 1


class RescueState(enum.IntEnum):
    """The progress of a rescue. The value is stored on the tape."""

    NONE = 0
    """Not begun."""
    RUNNING = 1
    SAVED = 2
    """The user's function returned, and the rank's state did not change meanwhile."""
    IN_OPTIMIZER = 3
    """Refused: a thread was in an optimizer step, so parameters may be half updated."""
    RAISED = 4
    """The user's function raised."""
    WENT_ON = 5
    """The rank stopped waiting before the save ended, so the saved state may mix two steps."""
    TOO_LATE = 6
    """The save took longer than allowed."""
    DEAD = 7
    """The rank died first. Readers set this state; ranks never write it."""

    @property
    def is_final(self) -> bool:
        """Whether the state cannot change any more."""
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
        step: The training step of the saved state, as counted by the user's function, or else by the tape.
    """

    state: RescueState = RescueState.NONE
    step: int = 0

    def encode(self) -> int:
        """Pack the rescue into a word. A step that does not fit is clipped."""
        return max(0, min(self.step, _MAX_STEP)) << _BITS | self.state

    @classmethod
    def decode(cls, value: int) -> Rescue:
        """Unpack a word. An unknown state, from a later version, counts as `NONE`."""
        state = value & ((1 << _BITS) - 1)
        return cls(RescueState(state), value >> _BITS) if state in RescueState._value2member_map_ else cls()


NO_RESCUE = Rescue()
