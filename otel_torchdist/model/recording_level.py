"""How much less than everything a rank records, because recording takes too much of its steps."""

from __future__ import annotations

import enum


class RecordingLevel(enum.IntEnum):
    """A step of the reduction. Each includes the steps before it. Operations are all recorded at every level."""

    EVERYTHING = 0
    NO_VALUES = 1
    """Values in tensors are not checked."""
    NO_INTERVALS = 2
    """Steps of optimizers, waits for data and backward passes are not recorded as intervals."""
    NO_CALL_SITES = 3
    """Operations are recorded without the lines that call them."""

    @property
    def left_out(self) -> str:
        """Clause with the data that this level leaves out, in addition to the levels before it."""
        match self:
            case RecordingLevel.EVERYTHING:
                return "nothing"
            case RecordingLevel.NO_VALUES:
                return "checks of values in tensors"
            case RecordingLevel.NO_INTERVALS:
                return "intervals of optimizers, data waits and backward passes"
            case RecordingLevel.NO_CALL_SITES:
                return "the lines that call operations"
