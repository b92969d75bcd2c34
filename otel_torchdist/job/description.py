"""Who a rank's job is: written by the rank beside its tape, because its environment is not that of the reader.

It has names of this project's own; `telemetry` knows what OpenTelemetry calls them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from otel_torchdist.files.others import read_regular
from otel_torchdist.files.owned import replace_at_once
from otel_torchdist.job.standard_error import StandardError
from otel_torchdist.naming import readable

MAX_BYTES: Final = 1 << 16
MAX_VALUE: Final = 256
MAX_ARGUMENTS: Final = 64
_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class JobDescription:
    """What launchers and trackers call a job; '' is what they do not say.

    Attributes:
        slurm_job_id: Slurm's number of the job.
        slurm_job_name: Its name.
        slurm_array_job_id: The number of the array that it belongs to.
        slurm_array_task_id: Its number there.
        slurm_partition: Its partition.
        slurm_cluster: Its cluster.
        slurm_node_id: Number of the node in the job.
        slurm_restart_count: How often Slurm has started it again.
        kubernetes_cluster: Name of the cluster.
        kubernetes_namespace: Namespace of the pod.
        kubernetes_pod: Name of the pod.
        kubernetes_pod_uid: Its UID.
        kubernetes_node: Name of the node.
        kubernetes_container: Name of the container in the pod.
        kubernetes_job: Name of the Job that the pod belongs to.
        ray_job_id: Ray's id of the job.
        elastic_run_id: torchelastic's id of the run (`--rdzv-id`).
        elastic_restart_count: How often torchelastic has started the workers again.
        mlflow_run_id: MLflow's id of the run.
        wandb_run_id: The id of the run in Weights & Biases.
        git_commit: Commit of the program's repository; only on request.
        command: The command line, secrets left out; only on request.
    """

    slurm_job_id: str = ""
    slurm_job_name: str = ""
    slurm_array_job_id: str = ""
    slurm_array_task_id: str = ""
    slurm_partition: str = ""
    slurm_cluster: str = ""
    slurm_node_id: str = ""
    slurm_restart_count: str = ""
    kubernetes_cluster: str = ""
    kubernetes_namespace: str = ""
    kubernetes_pod: str = ""
    kubernetes_pod_uid: str = ""
    kubernetes_node: str = ""
    kubernetes_container: str = ""
    kubernetes_job: str = ""
    ray_job_id: str = ""
    elastic_run_id: str = ""
    elastic_restart_count: str = ""
    mlflow_run_id: str = ""
    wandb_run_id: str = ""
    git_commit: str = ""
    command: tuple[str, ...] = ()


UNKNOWN_JOB: Final = JobDescription()

_VARIABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "slurm_job_id": ("SLURM_JOB_ID", "SLURM_JOBID"),
    "slurm_job_name": ("SLURM_JOB_NAME",),
    "slurm_array_job_id": ("SLURM_ARRAY_JOB_ID",),
    "slurm_array_task_id": ("SLURM_ARRAY_TASK_ID",),
    "slurm_partition": ("SLURM_JOB_PARTITION",),
    "slurm_cluster": ("SLURM_CLUSTER_NAME",),
    "slurm_node_id": ("SLURM_NODEID",),
    "slurm_restart_count": ("SLURM_RESTART_COUNT",),
    "kubernetes_cluster": ("K8S_CLUSTER_NAME",),
    "kubernetes_namespace": ("K8S_NAMESPACE_NAME", "K8S_NAMESPACE", "POD_NAMESPACE", "MY_POD_NAMESPACE"),
    # The last one is how OpenTelemetry's operator passes it on.
    "kubernetes_pod": ("K8S_POD_NAME", "POD_NAME", "MY_POD_NAME", "OTEL_RESOURCE_ATTRIBUTES_POD_NAME"),
    "kubernetes_pod_uid": ("K8S_POD_UID", "POD_UID", "MY_POD_UID", "OTEL_RESOURCE_ATTRIBUTES_POD_UID"),
    "kubernetes_node": ("K8S_NODE_NAME", "MY_NODE_NAME", "OTEL_RESOURCE_ATTRIBUTES_NODE_NAME"),
    "kubernetes_container": ("K8S_CONTAINER_NAME",),
    "kubernetes_job": ("K8S_JOB_NAME",),
    "ray_job_id": ("RAY_JOB_ID",),
    "elastic_run_id": ("TORCHELASTIC_RUN_ID",),
    "elastic_restart_count": ("TORCHELASTIC_RESTART_COUNT",),
    "mlflow_run_id": ("MLFLOW_RUN_ID",),
    "wandb_run_id": ("WANDB_RUN_ID",),
}
"""Variables that say it, the first that is set counts. Kubernetes sets none by itself: these are what people give their
pods from the downward API."""
_IN_KUBERNETES: Final = "KUBERNETES_SERVICE_HOST"
_NO_ID: Final = "none"
"""What torchrun writes for a run without an id."""


def describe_job(environ: Mapping[str, str], namespace_file: Path = _NAMESPACE_FILE) -> JobDescription:
    """Describe the job of a process by its environment.

    Args:
        environ: The environment.
        namespace_file: Where Kubernetes writes the pod's namespace.
    """
    found: dict[str, Any] = {
        name: next((text for variable in variables if (text := shown(environ.get(variable, "")))), "")
        for name, variables in _VARIABLES.items()
    }
    if found["elastic_run_id"] == _NO_ID:
        found["elastic_run_id"] = ""
    if environ.get(_IN_KUBERNETES):
        # A pod's host name is its name, unless the pod sets one.
        found["kubernetes_pod"] = found["kubernetes_pod"] or shown(environ.get("HOSTNAME", ""))
        found["kubernetes_namespace"] = found["kubernetes_namespace"] or _namespace_in(namespace_file)
    return JobDescription(**found)


def shown(text: str) -> str:
    """A value as it is passed on: short, and without characters that cannot be encoded or printed."""
    return readable(text.strip(), MAX_VALUE)


def _namespace_in(file: Path) -> str:
    with contextlib.suppress(OSError):
        return shown(read_regular(file.resolve(), MAX_BYTES).decode("utf-8", "replace"))
    return ""


# --- the file beside a tape ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RankDescription:
    """What a rank writes down of itself.

    Attributes:
        job: Its job.
        gpu: UUID of the GPU that its operations run on: `GPU-…`; '' before the first.
        stderr: The standard error of its job; None if `/proc` does not show it.
    """

    job: JobDescription = UNKNOWN_JOB
    gpu: str = ""
    stderr: StandardError | None = None


def description_path(tape: Path) -> Path:
    """Return the path of the description of the process that writes `tape`."""
    return tape.with_suffix(".description")


def write_description(tape: Path, description: RankDescription) -> None:
    """Replace the description beside a tape atomically.

    Raises:
        OSError: The file cannot be written.
    """
    content = json.dumps(asdict(description), separators=(",", ":")).encode()
    replace_at_once(description_path(tape), tape.with_suffix(".description.new"), content)
