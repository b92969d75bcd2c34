"""Labels of metrics, the attributes that represent them in OpenTelemetry, and the names of histograms.

Other metrics have their names in their rows in `telemetry.metrics.definitions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from otel_torchdist.semconv import attributes as _attributes

# --- histograms, as OpenTelemetry calls them: ranks' durations are handed on under these names ----------------------
OPERATION_DURATION: Final = "torchdist.operation.duration"
STEP_DURATION: Final = "torchdist.step.duration"
RPC_CLIENT_DURATION: Final = "rpc.client.call.duration"
RPC_SERVER_DURATION: Final = "rpc.server.call.duration"
# --- labels of metrics, and the attributes that represent them in OpenTelemetry ------------------------------------
LABEL_RUN: Final = "run"
LABEL_RANK: Final = "rank"
LABEL_GROUP: Final = "group"
LABEL_OPERATION: Final = "operation"
LABEL_DESCRIPTION: Final = "description"
LABEL_SIZE: Final = "size"
LABEL_MESSAGE_SIZE: Final = "message_size"
"""A class of message sizes, see `size_classes`."""
LABEL_VERDICT: Final = "verdict"
LABEL_RANKS: Final = "ranks"
LABEL_COVERAGE: Final = "coverage"
LABEL_TRACE_ID: Final = "trace_id"
LABEL_KIND: Final = "kind"
"""What happens on a critical path: `computing` or `transfer`."""
LABEL_CAUSE: Final = "cause"
"""What makes a critical path longer: `line`, `rank`, `node`, `stage` or `transfer`."""
LABEL_STAGE: Final = "stage"
"""A stage of a checkpoint, `whole`, or `other`."""
LABEL_UNSEEN: Final = "unseen"
"""Why values were not looked at: `type`, `layout`, `device`, `graph`, `full` or `failed`."""
LABEL_RPC_SYSTEM: Final = "rpc_system_name"
LABEL_RPC_METHOD: Final = "rpc_method"
LABEL_ERROR_TYPE: Final = "error_type"
"""Type of an error; empty if a call went well."""
LABEL_KERNEL: Final = "kernel"
LABEL_TORCH: Final = "torch"
LABEL_HOST: Final = "host_name"
LABEL_DEVICE: Final = "hw_id"
LABEL_SLURM_JOB_ID: Final = "slurm_job_id"
LABEL_SLURM_JOB_NAME: Final = "slurm_job_name"
LABEL_K8S_NAMESPACE: Final = "k8s_namespace_name"
LABEL_K8S_POD: Final = "k8s_pod_name"
LABEL_RAY_JOB_ID: Final = "ray_job_id"
LABEL_ELASTIC_RUN_ID: Final = "torchelastic_run_id"
LABEL_RESTART_COUNT: Final = "restart_count"
LABEL_MLFLOW_RUN_ID: Final = "mlflow_run_id"
LABEL_WANDB_RUN_ID: Final = "wandb_run_id"
OTEL_METRIC_ATTRIBUTES: Final[Mapping[str, str]] = {
    LABEL_RUN: _attributes.RUN,
    LABEL_RANK: _attributes.RANK,
    LABEL_GROUP: _attributes.GROUP_HASH,
    LABEL_OPERATION: _attributes.OPERATION,
    LABEL_DESCRIPTION: _attributes.GROUP_DESCRIPTION,
    LABEL_SIZE: _attributes.GROUP_SIZE,
    LABEL_MESSAGE_SIZE: _attributes.MESSAGE_SIZE_CLASS,
    LABEL_VERDICT: _attributes.VERDICT,
    LABEL_RANKS: _attributes.VERDICT_RANKS,
    LABEL_COVERAGE: _attributes.VERDICT_COVERAGE,
    LABEL_TRACE_ID: _attributes.STALL_TRACE_ID,
    LABEL_KIND: _attributes.PATH_KIND,
    LABEL_CAUSE: _attributes.PATH_CAUSE,
    LABEL_STAGE: _attributes.CHECKPOINT_STAGE,
    LABEL_UNSEEN: _attributes.UNSEEN_REASON,
    LABEL_RPC_SYSTEM: _attributes.RPC_SYSTEM,
    LABEL_RPC_METHOD: _attributes.RPC_METHOD,
    LABEL_ERROR_TYPE: _attributes.ERROR_TYPE,
    LABEL_KERNEL: _attributes.CAPTURE_KERNEL,
    LABEL_TORCH: _attributes.TORCH_VERSION,
    LABEL_HOST: _attributes.HOST_NAME,
    LABEL_DEVICE: _attributes.HW_ID,
    LABEL_SLURM_JOB_ID: _attributes.SLURM_JOB_ID,
    LABEL_SLURM_JOB_NAME: _attributes.SLURM_JOB_NAME,
    LABEL_K8S_NAMESPACE: _attributes.K8S_NAMESPACE_NAME,
    LABEL_K8S_POD: _attributes.K8S_POD_NAME,
    LABEL_RAY_JOB_ID: _attributes.RAY_JOB_ID,
    LABEL_ELASTIC_RUN_ID: _attributes.ELASTIC_RUN_ID,
    LABEL_RESTART_COUNT: _attributes.RESTART_COUNT,
    LABEL_MLFLOW_RUN_ID: _attributes.MLFLOW_RUN_ID,
    LABEL_WANDB_RUN_ID: _attributes.WANDB_RUN_ID,
}
OTHER_METHOD: Final = "_OTHER"
"""OpenTelemetry's `rpc.method` of a function that is not known, or beyond the limit, and its `error.type` likewise."""
OTHER: Final = "other"
"""The label of a group or operation that is unknown, or beyond the limit."""
RENDEZVOUS: Final = "rendezvous"
"""The operation of creating a group."""
