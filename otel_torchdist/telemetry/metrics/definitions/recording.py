"""What is recorded and exported of a run, what that costs, and what is lost."""

from __future__ import annotations

from typing import Final

from otel_torchdist.model.kinds import Kernel
from otel_torchdist.telemetry.metrics.labels import label_value
from otel_torchdist.telemetry.metrics.model import BY_RANK, MetricKind, NumberMetric, Numbers, Unit, of_rank
from otel_torchdist.telemetry.metrics.snapshots import NodeSnapshot


def group_info(node: NodeSnapshot) -> Numbers:
    """Purpose and size of each group."""
    for label, run in node.runs.items():
        for group, info in run.groups.items():
            yield (label, group, info.description, str(info.size)), 1


def group_members(node: NodeSnapshot) -> Numbers:
    """Number of members of each group."""
    for label, run in node.runs.items():
        for group, info in run.groups.items():
            yield (label, group), info.size


def capture_info(node: NodeSnapshot) -> Numbers:
    """What records each rank; ranks whose tape does not say it have no series."""
    for rank in node.ranks:
        if rank.kernel is not Kernel.UNKNOWN:
            yield (rank.run, str(rank.rank), rank.kernel.name.lower(), rank.torch), 1


RECORDING_METRICS: Final = (
    NumberMetric(
        "torchdist.group.info",
        MetricKind.INFO,
        Unit.NONE,
        "What a group is for and how many members it has.",
        ("run", "group", "description", "size"),
        group_info,
    ),
    NumberMetric(
        "torchdist.group.members",
        MetricKind.GAUGE,
        Unit.NONE,
        "How many members a group has.",
        ("run", "group"),
        group_members,
    ),
    NumberMetric(
        "torchdist.groups.folded",
        MetricKind.COUNTER,
        Unit.GROUPS,
        'Groups of the rank that are counted under group="other", because the node has too many.',
        BY_RANK,
        of_rank(lambda rank: rank.groups_folded),
    ),
    NumberMetric(
        "torchdist.capture.info",
        MetricKind.INFO,
        Unit.NONE,
        "What records the rank's calls (native or python), and the version of its torch.",
        (*BY_RANK, "kernel", "torch"),
        capture_info,
    ),
    NumberMetric(
        "torchdist.overhead",
        MetricKind.COUNTER,
        Unit.SECONDS,
        "Estimated time that the instrumentation has taken on the rank's threads.",
        BY_RANK,
        of_rank(lambda rank: rank.overhead_s),
    ),
    NumberMetric(
        "torchdist.records.lost",
        MetricKind.COUNTER,
        Unit.RECORDS,
        "Records that the rank could not write, or that were overwritten before they were read.",
        BY_RANK,
        of_rank(lambda rank: rank.records_lost),
    ),
    NumberMetric(
        "torchdist.names.dropped",
        MetricKind.COUNTER,
        Unit.NAMES,
        "Names of groups, call sites, labels and operations that did not fit into the rank's dictionary.",
        BY_RANK,
        of_rank(lambda rank: rank.names_dropped),
    ),
    NumberMetric(
        "torchdist.spans.dropped",
        MetricKind.COUNTER,
        Unit.SPANS,
        "Spans that could not be exported, or that a receiver rejected in a request that it accepted.",
        (),
        lambda node: (((), node.spans_dropped),),
    ),
    NumberMetric(
        "torchdist.archive.operations.dropped",
        MetricKind.COUNTER,
        Unit.OPERATIONS,
        "Operations that could not be archived; no series without an archive.",
        (),
        lambda node: () if node.archive_dropped is None else (((), node.archive_dropped),),
    ),
)


def rank_info(node: NodeSnapshot) -> Numbers:
    """The node and the GPU of each rank; no series if the machine is not read."""
    for rank in node.ranks:
        if rank.gpu is not None:
            yield (rank.run, str(rank.rank), node.host, label_value(rank.gpu)), 1


def job_info(node: NodeSnapshot) -> Numbers:
    """What launchers and trackers call the job of each run; runs that none of them knows have no series."""
    seen: set[str] = set()
    for rank in node.ranks:
        job = rank.job
        named = (
            job.slurm_job_id,
            job.slurm_job_name,
            job.kubernetes_namespace,
            job.kubernetes_pod,
            job.ray_job_id,
            job.elastic_run_id,
            job.elastic_restart_count or job.slurm_restart_count,
            job.mlflow_run_id,
            job.wandb_run_id,
        )
        if rank.run not in seen and any(named):
            seen.add(rank.run)
            yield (rank.run, *map(label_value, named)), 1


JOB_METRICS: Final = (
    NumberMetric(
        "torchdist.rank.info",
        MetricKind.INFO,
        Unit.NONE,
        "The node and the GPU (its UUID) of a rank, to join its series with those of node-exporter and dcgm-exporter.",
        ("run", "rank", "host_name", "hw_id"),
        rank_info,
    ),
    NumberMetric(
        "torchdist.job.info",
        MetricKind.INFO,
        Unit.NONE,
        "What launchers and trackers call the job; no series if its environment says nothing.",
        (
            "run",
            "slurm_job_id",
            "slurm_job_name",
            "k8s_namespace_name",
            "k8s_pod_name",
            "ray_job_id",
            "torchelastic_run_id",
            "restart_count",
            "mlflow_run_id",
            "wandb_run_id",
        ),
        job_info,
    ),
)
