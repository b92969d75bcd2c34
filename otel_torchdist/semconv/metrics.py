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
# --- labels of metrics: the attribute that represents each of them in OpenTelemetry ---------------------------------
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
    "torchelastic_run_id": _attributes.ELASTIC_RUN_ID,
    "restart_count": _attributes.RESTART_COUNT,
    "mlflow_run_id": _attributes.MLFLOW_RUN_ID,
    "wandb_run_id": _attributes.WANDB_RUN_ID,
}
OTHER_METHOD: Final = "_OTHER"
"""OpenTelemetry's `rpc.method` of a function that is not known, or beyond the limit, and its `error.type` likewise."""
OTHER: Final = "other"
"""The label of a group or operation that is unknown, or beyond the limit."""
RENDEZVOUS: Final = "rendezvous"
"""The operation of creating a group."""
