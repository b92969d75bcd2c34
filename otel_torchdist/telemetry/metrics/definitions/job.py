"""Where ranks run and what their job is called: metrics to join others with; see `table`."""

from __future__ import annotations

from typing import Final

from otel_torchdist import semconv
from otel_torchdist.semconv import LABEL_HOST, LABEL_RANK, LABEL_RUN
from otel_torchdist.telemetry.metrics.labels import label_value
from otel_torchdist.telemetry.metrics.model import MetricKind, NumberMetric, Numbers, Unit
from otel_torchdist.telemetry.metrics.snapshots import NodeSnapshot


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
        semconv.RANK_INFO,
        MetricKind.INFO,
        Unit.NONE,
        "The node and the GPU (its UUID) of a rank, to join its series with those of node-exporter and dcgm-exporter.",
        (LABEL_RUN, LABEL_RANK, LABEL_HOST, semconv.LABEL_DEVICE),
        rank_info,
    ),
    NumberMetric(
        semconv.JOB_INFO,
        MetricKind.INFO,
        Unit.NONE,
        "What launchers and trackers call the job; no series if its environment says nothing.",
        (
            LABEL_RUN,
            semconv.LABEL_SLURM_JOB_ID,
            semconv.LABEL_SLURM_JOB_NAME,
            semconv.LABEL_K8S_NAMESPACE,
            semconv.LABEL_K8S_POD,
            semconv.LABEL_RAY_JOB_ID,
            semconv.LABEL_ELASTIC_RUN_ID,
            semconv.LABEL_RESTART_COUNT,
            semconv.LABEL_MLFLOW_RUN_ID,
            semconv.LABEL_WANDB_RUN_ID,
        ),
        job_info,
    ),
)
