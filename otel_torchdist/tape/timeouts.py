"""What a backend does with an operation that does not end within its group's timeout."""

from __future__ import annotations

import enum


class AtTimeout(str, enum.Enum):
    """What becomes of the operation and of the process that waits in it; the value is that in dictionaries."""

    UNKNOWN = ""
    """The backend is not known to us, or a group has several with timeouts of their own."""
    RAISES = "raises"
    """The wait raises an error: gloo, and NCCL with `TORCH_NCCL_BLOCKING_WAIT`."""
    ENDS = "ends"
    """The backend ends the process: NCCL's watchdog as it is by default."""
    ABORTS = "aborts"
    """The backend aborts the operation, and the process goes on: `TORCH_NCCL_ASYNC_ERROR_HANDLING=2`."""
    NOTHING = "nothing"
    """Nothing: `TORCH_NCCL_ASYNC_ERROR_HANDLING=0`."""
