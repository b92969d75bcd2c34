"""A job's description as attributes: by OpenTelemetry's conventions where it has a name for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from opentelemetry.util.types import AttributeValue

from otel_torchdist import semconv
from otel_torchdist.job.description import JobDescription
from otel_torchdist.job.description_file import read_description
from otel_torchdist.tape.reading.reader import TapeReader

_OF_JOB: Final[Mapping[str, str]] = {
    semconv.SLURM_JOB_ID: "slurm_job_id",
    semconv.SLURM_JOB_NAME: "slurm_job_name",
    semconv.SLURM_ARRAY_JOB_ID: "slurm_array_job_id",
    semconv.SLURM_ARRAY_TASK_ID: "slurm_array_task_id",
    semconv.SLURM_PARTITION: "slurm_partition",
    semconv.SLURM_CLUSTER: "slurm_cluster",
    semconv.SLURM_NODE_ID: "slurm_node_id",
    semconv.K8S_CLUSTER_NAME: "kubernetes_cluster",
    semconv.K8S_NAMESPACE_NAME: "kubernetes_namespace",
    semconv.K8S_POD_NAME: "kubernetes_pod",
    semconv.K8S_POD_UID: "kubernetes_pod_uid",
    semconv.K8S_NODE_NAME: "kubernetes_node",
    semconv.K8S_CONTAINER_NAME: "kubernetes_container",
    semconv.K8S_JOB_NAME: "kubernetes_job",
    semconv.RAY_JOB_ID: "ray_job_id",
    semconv.ELASTIC_RUN_ID: "elastic_run_id",
    semconv.MLFLOW_RUN_ID: "mlflow_run_id",
    semconv.WANDB_RUN_ID: "wandb_run_id",
    semconv.VCS_REVISION: "git_commit",
}
_OF_ATTEMPT: Final[Mapping[str, str]] = {
    semconv.SLURM_RESTART_COUNT: "slurm_restart_count",
    semconv.ELASTIC_RESTART_COUNT: "elastic_restart_count",
}
_NUMBERS: Final = frozenset({semconv.SLURM_RESTART_COUNT, semconv.ELASTIC_RESTART_COUNT})


def attributes_of_job(job: JobDescription) -> dict[str, AttributeValue]:
    """What holds for all attempts of a job: attributes of the resource."""
    found = _attributes(job, _OF_JOB)
    if job.command:
        found[semconv.PROCESS_COMMAND_ARGS] = list(job.command)
    return found


def attributes_of_attempt(job: JobDescription) -> dict[str, AttributeValue]:
    """The same, and what holds for one attempt only, which an agent may outlive; not that it is the first."""
    counts = {name: count for name, count in _attributes(job, _OF_ATTEMPT).items() if count != 0}
    return attributes_of_job(job) | counts


def described_beyond(
    resource: Mapping[str, AttributeValue], is_of_one_job: bool, tape: TapeReader
) -> dict[str, AttributeValue]:
    """What a rank's description says, and the resource does not.

    Args:
        resource: Attributes of the resource.
        is_of_one_job: Whether it is that of the rank's job. Then it is right, for a user may have set it; else it is
            that of an agent, which may run in a pod of its own.
        tape: The tape of the rank.
    """
    found = read_description(tape.path, tape.owner)
    if found is None:
        return {}
    attributes = attributes_of_attempt(found.job)
    if is_of_one_job:
        return {name: value for name, value in attributes.items() if name not in resource}
    return {name: value for name, value in attributes.items() if not _says(resource, name, value)}


def _says(resource: Mapping[str, AttributeValue], name: str, value: AttributeValue) -> bool:
    shown = resource.get(name)
    return (list(shown) if isinstance(shown, tuple) else shown) == value


def _attributes(job: JobDescription, names: Mapping[str, str]) -> dict[str, AttributeValue]:
    found: dict[str, AttributeValue] = {}
    for name, of_ours in names.items():
        text = getattr(job, of_ours)
        if text:
            found[name] = int(text) if name in _NUMBERS and text.isascii() and text.isdecimal() else text
    return found
