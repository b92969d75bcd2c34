"""Names of spans and of duration histograms, and labels of metrics.

`telemetry.metrics.definitions` has the names of other metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from otel_torchdist.telemetry.semconv import attributes as _attributes

SCOPE_NAME: Final = "otel_torchdist"
SCHEMA_VERSION: Final = "0.1.0"
"""Version of these names. It changes if a name changes, and is independent of the package's version."""
SCHEMA_URL: Final = f"https://otel-torchdist.readthedocs.io/schemas/{SCHEMA_VERSION}"
"""Address that identifies these names on spans, metrics and events. `docs/semconv/schemas` has the file for it."""
# --- spans ---------------------------------------------------------------------------------------------------------
STEP_SPAN: Final = "step (rank {rank})"
"""A segment of a training step of one rank, and the parent of its operations. Usually a step is one segment."""
OPTIMIZER_STEP_SPAN: Final = "optimizer step"
"""The step of an optimizer. For nested optimizers, only the outermost; at most 16 per training step. Compiled steps
have no span. With a device, the span ends when the step is enqueued. An error if the step raised an exception."""
CHECKPOINT_SPAN: Final = "checkpoint {operation}"
"""A checkpoint on one rank: `checkpoint save`, `load`, `async_save` (until it returns; the save itself is a `save` of
another thread or process), `torch.save`, `torch.load`; at most 16 of each per training step. Its children are its
stages: `plan`, `write` and `read`, including the collectives in which ranks wait for each other. Their children are
`write_data`, `read_data` and others. An error if it raised an exception."""
DATA_WAIT_SPAN: Final = "data wait"
"""A wait of the training thread for a batch of a `DataLoader`, or in `data_wait()`, of a millisecond or longer; at most
16 per training step. Metrics count all waits."""
BACKWARD_SPAN: Final = "backward"
"""A backward pass of autograd that took a millisecond or longer, or raised an exception; at most 16 per training step.
With a device, it ends when it is enqueued."""
RPC_JOIN_SPAN: Final = "init_rpc"
"""A worker's `init_rpc`, which waits for all workers."""
RPC_SHUTDOWN_SPAN: Final = "rpc.shutdown"
"""A worker's `rpc.shutdown`, which waits for all workers and their calls."""
IN_PROGRESS_SPAN: Final = "{operation} (in progress)"
"""An operation in flight, from its start to now; an error if it is stalled."""
STALL_SPAN: Final = "stall: {operation} ({verdict})"
"""The root of an incident, in a separate trace."""
FINDING_SPAN: Final = "finding: {operation} ({verdict})"
"""A finding other than a stall: the only span of its trace."""
ALL_OPERATIONS: Final = "steps"
"""Replaces the operation in the name of a finding about several operations."""
STALL_RANK_SPAN: Final = "rank {rank}: {state}"
"""A member of the stalled group, and its state in the operation: `absent`, `dead`, `waiting` and others."""
FOLLOWED: Final = "followed"
"""Replaces `dead` in the name of a rank's span if the verdict does not name the rank: its death is a consequence."""
STALL_REST_SPAN: Final = "{count} more ranks"
"""The members beyond the first 64. Each of the first 64 has a span of its own."""
IMPORT_SPAN: Final = "imported {source}"
"""The root of an import from files: `imported flight recorder`."""
IMPORT_RANK_SPAN: Final = "calls (rank {rank})"
"""The imported calls of one rank, and the parent of its operations. An error if a verdict names the rank."""


# --- names of histograms in OpenTelemetry --------------------------------------------------------------------------
OPERATION_DURATION: Final = "torchdist.operation.duration"
STEP_DURATION: Final = "torchdist.step.duration"
RPC_CLIENT_DURATION: Final = "rpc.client.call.duration"
RPC_SERVER_DURATION: Final = "rpc.server.call.duration"
# --- labels of metrics, and their attributes in OpenTelemetry ------------------------------------------------------
OTEL_METRIC_ATTRIBUTES: Final[Mapping[str, str]] = {
    "run": _attributes.RUN,
    "rank": _attributes.RANK,
    "group": _attributes.GROUP_HASH,
    "operation": _attributes.OPERATION,
    "description": _attributes.GROUP_DESCRIPTION,
    "size": _attributes.GROUP_SIZE,
    "message_size": _attributes.MESSAGE_SIZE_CLASS,
    "verdict": _attributes.VERDICT,
    "ranks": _attributes.VERDICT_RANKS,
    "coverage": _attributes.VERDICT_COVERAGE,
    "trace_id": _attributes.STALL_TRACE_ID,
    "kind": _attributes.PATH_KIND,
    "cause": _attributes.PATH_CAUSE,
    "stage": _attributes.CHECKPOINT_STAGE,
    "unseen": _attributes.UNSEEN_REASON,
    "rpc_system_name": _attributes.RPC_SYSTEM,
    "rpc_method": _attributes.RPC_METHOD,
    "error_type": _attributes.ERROR_TYPE,
    "kernel": _attributes.CAPTURE_KERNEL,
    "torch": _attributes.TORCH_VERSION,
    "host_name": _attributes.HOST_NAME,
    "hw_id": _attributes.HW_ID,
    "slurm_job_id": _attributes.SLURM_JOB_ID,
    "slurm_job_name": _attributes.SLURM_JOB_NAME,
    "k8s_namespace_name": _attributes.K8S_NAMESPACE_NAME,
    "k8s_pod_name": _attributes.K8S_POD_NAME,
    "ray_job_id": _attributes.RAY_JOB_ID,
    "ray_submission_id": _attributes.RAY_SUBMISSION_ID,
    "ray_train_run": _attributes.RAY_TRAIN_RUN,
    "torchelastic_run_id": _attributes.ELASTIC_RUN_ID,
    "restart_count": _attributes.RESTART_COUNT,
    "mlflow_run_id": _attributes.MLFLOW_RUN_ID,
    "wandb_run_id": _attributes.WANDB_RUN_ID,
}
OTEL_OTHER: Final = "_OTHER"
"""OpenTelemetry's `rpc.method` or `error.type` for a value that is unknown, or beyond the limit on distinct values."""
OTHER: Final = "other"
"""The label of a group or operation that is unknown, or beyond the limit on distinct labels."""
RENDEZVOUS: Final = "rendezvous"
"""The operation of creating a group."""
