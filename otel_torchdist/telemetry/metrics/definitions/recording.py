"""Recording: its costs and losses, the values in tensors, scales and parameters that it sees, and where ranks run."""

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
    """Purpose and size of each group."""
    for label, run in node.runs.items():
        for group, described in run.groups.items():
            yield (label, group, described.description, str(described.size)), 1


def group_members(node: NodeSnapshot) -> Numbers:
    """Yield the number of members of each group."""
    for label, run in node.runs.items():
        for group, described in run.groups.items():
            yield (label, group), described.size


def capture_info(node: NodeSnapshot) -> Numbers:
    """Yield the recorder and the torch version of each rank; ranks with an unknown recorder have no series."""
    for rank in node.ranks:
        if rank.kernel is not Kernel.UNKNOWN:
            yield (rank.run, str(rank.rank), rank.kernel.name.lower(), rank.torch), 1


RECORDING_METRICS: Final = (
    info(
        "torchdist.group.info",
        "What a group is for and how many members it has.",
        ("run", "group", "description", "size"),
        group_info,
    ),
    gauge(
        "torchdist.group.members",
        Unit.NONE,
        "How many members a group has.",
        ("run", "group"),
        group_members,
    ),
    counter(
        "torchdist.groups.folded",
        Unit.GROUPS,
        'Groups of the rank that are counted under group="other", because the node has too many.',
        BY_RANK,
        of_rank(lambda rank: rank.groups_folded),
    ),
    info(
        "torchdist.capture.info",
        "What records the rank's calls (native or python), and the version of its torch.",
        (*BY_RANK, "kernel", "torch"),
        capture_info,
    ),
    counter(
        "torchdist.overhead",
        Unit.SECONDS,
        "Estimated time that the instrumentation has taken on the rank's threads.",
        BY_RANK,
        of_rank(lambda rank: rank.overhead_s),
    ),
    counter(
        "torchdist.records.lost",
        Unit.RECORDS,
        "Records that the rank could not write, or that were overwritten before they were read.",
        BY_RANK,
        of_rank(lambda rank: rank.records_lost),
    ),
    counter(
        "torchdist.names.dropped",
        Unit.NAMES,
        "Names of groups, call sites, labels and operations that did not fit into the rank's dictionary.",
        BY_RANK,
        of_rank(lambda rank: rank.names_dropped),
    ),
    counter(
        "torchdist.spans.dropped",
        Unit.SPANS,
        "Spans that could not be exported, or that a receiver rejected in a request that it accepted.",
        (),
        lambda node: (((), node.spans_dropped),),
    ),
    counter(
        "torchdist.archive.operations.dropped",
        Unit.OPERATIONS,
        "Operations that could not be archived; no series without an archive.",
        (),
        lambda node: () if node.archive_dropped is None else (((), node.archive_dropped),),
    ),
)


def rank_info(node: NodeSnapshot) -> Numbers:
    """Yield the node and the GPU of each rank; no series if the machine is not read."""
    for rank in node.ranks:
        if rank.gpu is not None:
            yield (rank.run, str(rank.rank), node.host, label_value(rank.gpu)), 1


def job_info(node: NodeSnapshot) -> Numbers:
    """Yield the names that launchers and trackers give to the job of each run; runs without any have no series."""
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
    info(
        "torchdist.rank.info",
        "The node and the GPU (its UUID) of a rank, to join its series with those of node-exporter and dcgm-exporter.",
        ("run", "rank", "host_name", "hw_id"),
        rank_info,
    ),
    info(
        "torchdist.job.info",
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


def unseen_operations(node: NodeSnapshot) -> Numbers:
    """Yield the number of operations of each rank whose inputs were not looked at, by the reason."""
    for rank in node.ranks:
        for reason, count in rank.totals.unseen.items():
            yield (rank.run, str(rank.rank), reason), count


def of_values(value: Callable[[Numerics], float | None]) -> Reader:
    """Make a reader of one number per operation of each rank whose inputs were sampled; None and NaN have no series."""

    def read(node: NodeSnapshot) -> Numbers:
        for rank in node.ranks:
            for one in rank.operations:
                number = value(one.values) if one.values is not None else None
                if number is not None and not math.isnan(number):
                    yield (rank.run, str(rank.rank), one.group, one.operation), number

    return read


VALUE_METRICS: Final = (
    counter(
        "torchdist.sampled_operations",
        Unit.OPERATIONS,
        "The rank's operations whose tensors' statistics were taken; no series if there are none, as for those below.",
        BY_RANK,
        of_rank(lambda rank: rank.totals.sampled or None),
    ),
    counter(
        "torchdist.non_finite_operations",
        Unit.OPERATIONS,
        "The rank's operations with an input that was infinite or not a number, of those that were looked at.",
        BY_RANK,
        of_rank(lambda rank: rank.totals.non_finite if rank.totals.sampled or rank.totals.non_finite else None),
    ),
    counter(
        "torchdist.unseen_operations",
        Unit.OPERATIONS,
        "The rank's operations whose inputs should have been looked at and were not, all or some: because of their "
        "type, layout or device, while a graph was captured, because too much was on its way from the device (full), "
        "or because it failed.",
        ("run", "rank", "unseen"),
        unseen_operations,
    ),
    counter(
        "torchdist.amp.skipped_steps",
        Unit.STEPS,
        "The rank's steps that a gradient scaler has left out because of an overflow.",
        BY_RANK,
        of_rank(lambda rank: rank.totals.skipped_steps or None),
    ),
    gauge(
        "torchdist.amp.scale",
        Unit.NONE,
        "The scale of the rank's gradient scaler in its newest step; no series if it is not known.",
        BY_RANK,
        of_rank(lambda rank: rank.totals.loss_scale),
    ),
    counter(
        "torchdist.parameter_checksums",
        Unit.CHECKSUMS,
        "Checksums that the rank has taken of parameters that other ranks must have alike.",
        BY_RANK,
        of_rank(lambda rank: rank.totals.compared_parameters or None),
    ),
    gauge(
        "torchdist.replicas.left_out",
        Unit.NONE,
        "The rank's models and optimizers whose parameters are not compared, because there are too many of them.",
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
        "How often that magnitude could be doubled before it overflowed its type.",
        BY_OPERATION,
        of_values(lambda values: values.headroom),
    ),
)
