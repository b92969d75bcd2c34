"""Names of spans."""

from __future__ import annotations

from typing import Final

SCOPE_NAME: Final = "otel_torchdist"
# --- spans ---------------------------------------------------------------------------------------------------------
STEP_SPAN: Final = "step (rank {rank})"
"""A segment of a training step of one rank; the parent of its operations. Usually a step is one segment."""
OPTIMIZER_STEP_SPAN: Final = "optimizer step"
"""The step of an optimizer, with all that it calls; of optimizers within optimizers only the outermost, and at most 16
in a training step. Compiled steps have none. On a device it ends when it is enqueued. An error if it was left with an
exception."""
CHECKPOINT_SPAN: Final = "checkpoint {operation}"
"""A checkpoint on one rank: `checkpoint save`, `load`, `async_save` (until that returns; the save itself is a `save` of
another thread or process), `torch.save`, `torch.load`; at most 16 of each in a training step. Children are its stages,
named after them: `plan`, `write` and `read` with the collectives in which ranks wait for each other, in them
`write_data`, `read_data` and others. An error if it raised."""
DATA_WAIT_SPAN: Final = "data wait"
"""The training thread waited for a batch of a `DataLoader`, or in `data_wait()`, for a millisecond or longer; at most
16 in a training step. Metrics count the others, too."""
BACKWARD_SPAN: Final = "backward"
"""A backward pass of autograd that took a millisecond or longer, or raised; at most 16 in a training step. On a device
it ends when it is enqueued."""
RPC_JOIN_SPAN: Final = "init_rpc"
"""A worker's `init_rpc`, which waits for all workers."""
RPC_SHUTDOWN_SPAN: Final = "rpc.shutdown"
"""A worker's `rpc.shutdown`, which waits for all workers and their calls."""
IN_PROGRESS_SPAN: Final = "{operation} (in progress)"
"""An operation that has not ended, from its start to now; an error if it is stalled."""
STALL_SPAN: Final = "stall: {operation} ({verdict})"
"""The root of an incident, in a trace of its own."""
FINDING_SPAN: Final = "finding: {operation} ({verdict})"
"""Something wrong or slow without a stall: the only span of its trace."""
ALL_OPERATIONS: Final = "steps"
"""In the name of a finding, in place of an operation, if it concerns several."""
STALL_RANK_SPAN: Final = "rank {rank}: {state}"
"""A member of the stalled group, and what it has done about the operation: `absent`, `dead`, `waiting` and others."""
FOLLOWED: Final = "followed"
"""In place of `dead` in that name if the verdict does not name the rank: others had ended it, or the cause had."""
STALL_REST_SPAN: Final = "{count} more ranks"
"""The members beyond the 64 that have a span of their own."""
IMPORT_SPAN: Final = "imported {source}"
"""The root of what was imported from files: `imported flight recorder`."""
IMPORT_RANK_SPAN: Final = "calls (rank {rank})"
"""The imported calls of one rank; an error if a verdict names it. Beneath it are its operations."""
