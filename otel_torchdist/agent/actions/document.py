"""The JSON that actions receive: a versioned schema, of which `docs/schemas` has the JSON Schema."""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

SCHEMA: Final = 1
"""Number of the schema. Keys are only ever added to it."""

DocumentValue: TypeAlias = bool | int | float | str | tuple[str, ...]


class MachineDocument(msgspec.Struct, frozen=True):
    """The advice on the machines that the verdict blames.

    Attributes:
        action: `drain` (evidence of the machine shows the fault), `exclude` (leave it out of the job's next start: at
            least the second incident without such evidence) or `none`.
        reason: Why, in one line.
        hosts: Host names of these machines; empty if no machine is blamed.
        incidents: Runs that have blamed the machine in the last days, as counted so far; 0 if they are not counted.
    """

    action: str
    reason: str
    hosts: tuple[str, ...]
    incidents: int


class JobDocument(msgspec.Struct, frozen=True):
    """The names of the job in launchers, from the environment of its ranks on the node that judges; null if unknown.

    Attributes:
        slurm_job_id: Slurm's id of the job.
        slurm_cluster: Name of the Slurm cluster.
        kubernetes_namespace: Namespace of the pods.
        kubernetes_pod: Name of a pod.
        kubernetes_node: Name of that pod's node.
        kubernetes_job: Name of the Job that owns the pod.
        ray_job_id: Ray's id of the job.
        elastic_run_id: torchelastic's id of the run.
    """

    slurm_job_id: str | None
    slurm_cluster: str | None
    kubernetes_namespace: str | None
    kubernetes_pod: str | None
    kubernetes_node: str | None
    kubernetes_job: str | None
    ray_job_id: str | None
    elastic_run_id: str | None


class ActionDocument(msgspec.Struct, frozen=True):
    """The standard input of a `command`.

    Attributes:
        schema: 1.
        occasion: `stall`, `finding` or `machine`: the setting whose action this is.
        run: Id of the run, 32 hex digits; commands and metrics show the first 8.
        trace_id: Trace id of the stall's or finding's own trace, 32 hex digits.
        verdict: Kind of the verdict or finding.
        ranks: The named ranks, such as `2,5-7`; empty if it names none.
        text: The whole verdict as a sentence, with the next step.
        attributes: The verdict as span attributes.
        machine: The advice on machines.
        job: The names of the job.
    """

    schema: int
    occasion: str
    run: str
    trace_id: str
    verdict: str
    ranks: str
    text: str
    attributes: dict[str, DocumentValue]
    machine: MachineDocument
    job: JobDocument
