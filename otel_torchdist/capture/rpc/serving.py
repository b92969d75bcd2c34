"""What the calling thread does for another worker, so that its own calls are in the same trace."""

from __future__ import annotations

import threading
from typing import NamedTuple


class ServedCall(NamedTuple):
    """A call that a thread serves.

    Attributes:
        number: Number of its record; 0 for none.
        step: The first caller's step.
    """

    number: int
    step: int


NO_CALL = ServedCall(0, 0)


class Serving(threading.local):
    """The call that the calling thread serves."""

    call: ServedCall = NO_CALL
