"""Metrics of the recording (costs and losses), of numerics, and of the ranks' machines and jobs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from otel_torchdist.model.kinds import Kernel
from otel_torchdist.model.numerics import Numerics
from otel_torchdist.telemetry.metrics.labels import label_value
from otel_torchdist.telemetry.metrics.metric import (
    BY_OPERATION,
    BY_RANK,
    Numbers,
    Reader,
    Unit,
    counter,
    gauge,
    info,
    of_rank,
)
from otel_torchdist.telemetry.metrics.snapshots import NodeSnapshot


def group_info(node: NodeSnapshot) -> Numbers:
    """Yield the description and the size of each group."""
    for label, run in node.runs.items():
        for group, group_info in run.groups.items():
            yield (label, group, group_info.description, str(group_info.size)), 1


def group_members(node: NodeSnapshot) -> Numbers:
    """Yield the number of members of each group."""
    for label, run in node.runs.items():
        for group, group_info in run.groups.items():
            yield (label, group), group_info.size


def capture_info(node: NodeSnapshot) -> Numbers:
    """Yield the recording kernel and the torch version of each rank. Ranks with an unknown kernel have no series."""
    for rank in node.ranks:
        if rank.kernel is not Kernel.UNKNOWN:
            yield (rank.run, str(rank.rank), rank.kernel.name.lower(), rank.torch), 1


RECORDING_METRICS: Final = (
    info(
        "torchdist.group.info",
        "Description and number of members of a group.",
        ("run", "group", "description", "size"),
        group_info,
    ),
    gauge(
        "torchdist.group.members",
        Unit.NONE,
        "Number of members of a group.",
        ("run", "group"),
        group_members,
    ),
    counter(
        "torchdist.groups.folded",
        Unit.GROUPS,
        'Groups of the rank counted under group="other", because the node has too many groups.',
        BY_RANK,
        of_rank(lambda rank: rank.groups_folded),
    ),
    info(
        "torchdist.capture.info",
        "Kernel that records the rank's calls (native or python), and the version of its torch.",
        (*BY_RANK, "kernel", "torch"),
        capture_info,
    ),
    counter(
        "torchdist.overhead",
        Unit.SECONDS,
        "Estimated time that the instrumentation took on the rank's threads.",
        BY_RANK,
        of_rank(lambda rank: rank.overhead_s),
    ),
    gauge(
        "torchdist.recording.state",
        Unit.NONE,
        "1 while the rank is recorded, 0 once recording was switched off although the rank may go on.",
        BY_RANK,
        of_rank(lambda rank: 0 if rank.is_switched_off else 1),
    ),
    gauge(
        "torchdist.recording.level",
        Unit.NONE,
        "How much less than everything the rank records, because recording took more of its steps than the overhead "
        "budget: 0 everything, 1 no checks of values, 2 also no intervals of optimizers, data waits and backward "
        "passes, 3 also no lines that call operations.",
        BY_RANK,
        of_rank(lambda rank: rank.recording_level),
    ),
    counter(
        "torchdist.records.lost",
        Unit.RECORDS,
        "Records that the rank could not write, or that were overwritten before they could be read.",
        BY_RANK,
        of_rank(lambda rank: rank.records_lost),
    ),
    counter(
        "torchdist.names.dropped",
        Unit.NAMES,
        "Names of groups, call sites, labels and operations that did not fit in the rank's dictionary.",
        BY_RANK,
        of_rank(lambda rank: rank.names_dropped),
    ),
    counter(
        "torchdist.spans.dropped",
        Unit.SPANS,
        "Spans that could not be exported, or that a receiver rejected in an otherwise accepted request.",
        (),
        lambda node: (((), node.spans_dropped),),
    ),
    counter(
        "torchdist.archive.operations.dropped",
        Unit.OPERATIONS,
        "Operations that could not be archived. No series without an archive.",
        (),
        lambda node: () if node.archive_dropped is None else (((), node.archive_dropped),),
    ),
)


def rank_info(node: NodeSnapshot) -> Numbers:
    """Yield the node and the GPU of each rank. Ranks have no series if the machine is not monitored."""
    for rank in node.ranks:
        if rank.gpu is not None:
            yield (rank.run, str(rank.rank), node.host, label_value(rank.gpu)), 1


def job_info(node: NodeSnapshot) -> Numbers:
    """Yield the job ids and names of launchers and trackers for each run. Runs without any have no series."""
    yielded_runs: set[str] = set()
    for rank in node.ranks:
        job = rank.job
        ids = (
            job.slurm_job_id,
            job.slurm_job_name,
            job.kubernetes_namespace,
            job.kubernetes_pod,
            job.ray_job_id,
            job.ray_submission_id,
            job.ray_train_run,
            job.elastic_run_id,
            job.elastic_restart_count or job.slurm_restart_count,
            job.mlflow_run_id,
            job.wandb_run_id,
        )
        if rank.run not in yielded_runs and any(ids):
            yielded_runs.add(rank.run)
            yield (rank.run, *map(label_value, ids)), 1


JOB_METRICS: Final = (
    info(
        "torchdist.rank.info",
        "Node and GPU (UUID) of a rank, to join its series with series of node-exporter and dcgm-exporter.",
        ("run", "rank", "host_name", "hw_id"),
        rank_info,
    ),
    info(
        "torchdist.job.info",
        "Ids and names of the job in launchers and trackers. No series if its environment contains none.",
        (
            "run",
            "slurm_job_id",
            "slurm_job_name",
            "k8s_namespace_name",
            "k8s_pod_name",
            "ray_job_id",
            "ray_submission_id",
            "ray_train_run",
            "torchelastic_run_id",
            "restart_count",
            "mlflow_run_id",
            "wandb_run_id",
        ),
        job_info,
    ),
)


def unseen_operations(node: NodeSnapshot) -> Numbers:
    """Yield the number of operations of each rank whose inputs could not be inspected, by reason."""
    for rank in node.ranks:
        for reason, count in rank.totals.unseen.items():
            yield (rank.run, str(rank.rank), reason), count


def of_values(value: Callable[[Numerics], float | None]) -> Reader:
    """Return a reader of one number per operation of each rank with sampled inputs. None and NaN have no series."""

    def read(node: NodeSnapshot) -> Numbers:
        for rank in node.ranks:
            for operation in rank.operations:
                number = value(operation.values) if operation.values is not None else None
                if number is not None and not math.isnan(number):
                    yield (rank.run, str(rank.rank), operation.group, operation.operation), number

    return read


VALUE_METRICS: Final = (
    counter(
        "torchdist.sampled_operations",
        Unit.OPERATIONS,
        "Operations of the rank with sampled tensor statistics. No series if there are none, as for the metrics below.",
        BY_RANK,
        of_rank(lambda rank: rank.totals.sampled or None),
    ),
    counter(
        "torchdist.non_finite_operations",
        Unit.OPERATIONS,
        "Inspected operations of the rank with an infinite or NaN input.",
        BY_RANK,
        of_rank(lambda rank: rank.totals.non_finite if rank.totals.sampled or rank.totals.non_finite else None),
    ),
    counter(
        "torchdist.unseen_operations",
        Unit.OPERATIONS,
        "Operations of the rank whose inputs could not be inspected, or only in part: because of their type, layout or "
        "device, during the capture of a graph, because too many values were pending on the device (full), or because "
        "of an error.",
        ("run", "rank", "unseen"),
        unseen_operations,
    ),
    counter(
        "torchdist.amp.skipped_steps",
        Unit.STEPS,
        "Steps of the rank that a gradient scaler skipped because of an overflow.",
        BY_RANK,
        of_rank(lambda rank: rank.totals.skipped_steps or None),
    ),
    gauge(
        "torchdist.amp.scale",
        Unit.NONE,
        "Scale of the rank's gradient scaler in its newest step. No series if unknown.",
        BY_RANK,
        of_rank(lambda rank: rank.totals.loss_scale),
    ),
    counter(
        "torchdist.parameter_checksums",
        Unit.CHECKSUMS,
        "Checksums computed by the rank over parameters that must be equal on other ranks.",
        BY_RANK,
        of_rank(lambda rank: rank.totals.compared_parameters or None),
    ),
    gauge(
        "torchdist.replicas.left_out",
        Unit.NONE,
        "Models and optimizers of the rank with too many parameters to compare.",
        BY_RANK,
        of_rank(lambda rank: rank.totals.replicas_left_out if rank.totals.compared_parameters else None),
    ),
    gauge(
        "torchdist.input.norm",
        Unit.NONE,
        "L2 norm of the inputs of the newest sampled operation.",
        BY_OPERATION,
        of_values(lambda values: values.norm),
    ),
    gauge(
        "torchdist.input.absmax",
        Unit.NONE,
        "Largest magnitude in the inputs of the newest sampled operation.",
        BY_OPERATION,
        of_values(lambda values: values.absmax),
    ),
    gauge(
        "torchdist.input.headroom",
        Unit.NONE,
        "Number of times that the largest magnitude could be doubled before it overflows its type.",
        BY_OPERATION,
        of_values(lambda values: values.headroom),
    ),
)
