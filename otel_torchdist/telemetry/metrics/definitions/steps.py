"""Steps of ranks, and what their time goes into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from otel_torchdist import semconv
from otel_torchdist.tape.figures import StepFigures
from otel_torchdist.telemetry.metrics.definitions.series import BY_RANK, Reader, of_rank
from otel_torchdist.telemetry.metrics.model import MetricKind, NumberMetric, Unit


def of_figures(value: Callable[[StepFigures], float], count: Callable[[StepFigures], float]) -> Reader:
    """Make a reader of one number per rank; a rank that has counted nothing of the kind has no series."""
    return of_rank(lambda rank: value(rank.figures) if count(rank.figures) else None)


STEP_METRICS: Final = (
    NumberMetric(
        semconv.TIMED_STEPS,
        MetricKind.COUNTER,
        Unit.STEPS,
        "The rank's steps whose duration is known.",
        BY_RANK,
        of_rank(lambda rank: rank.steps.count),
    ),
    NumberMetric(
        semconv.TIMED_STEP_SECONDS,
        MetricKind.COUNTER,
        Unit.SECONDS,
        "Sum of the rank's known step durations.",
        BY_RANK,
        of_rank(lambda rank: rank.steps.sum_s),
    ),
    NumberMetric(
        semconv.DATA_WAIT_SECONDS,
        MetricKind.COUNTER,
        Unit.SECONDS,
        "Time that the rank's training thread waited for batches of a DataLoader, or in data_wait(). A rank without "
        "any has no series, and likewise in the metrics below.",
        BY_RANK,
        of_figures(lambda one: one.data_wait_ns / 1e9, lambda one: one.batches),
    ),
    NumberMetric(
        semconv.BATCHES,
        MetricKind.COUNTER,
        Unit.BATCHES,
        "Batches that the rank has got by these waits.",
        BY_RANK,
        of_figures(lambda one: one.batches, lambda one: one.batches),
    ),
    NumberMetric(
        semconv.BACKWARD_SECONDS,
        MetricKind.COUNTER,
        Unit.SECONDS,
        "Time that the rank's backward passes have taken on the host. On a device they are only enqueued in that time, "
        "as far as nothing in them waits for the device.",
        BY_RANK,
        of_figures(lambda one: one.backward_ns / 1e9, lambda one: one.backward_passes),
    ),
    NumberMetric(
        semconv.OPTIMIZER_SECONDS,
        MetricKind.COUNTER,
        Unit.SECONDS,
        "Time that the steps of the rank's optimizers have taken on the host, at most 16 in a training step, outside "
        "of backward passes and of compiled code. On a device they are only enqueued in that time.",
        BY_RANK,
        of_figures(lambda one: one.optimizer_ns / 1e9, lambda one: one.optimizer_steps),
    ),
    NumberMetric(
        semconv.SAMPLES,
        MetricKind.COUNTER,
        Unit.SAMPLES,
        "Samples that the rank has processed, as given to mark_step(samples=).",
        BY_RANK,
        of_figures(lambda one: one.samples, lambda one: one.samples),
    ),
    NumberMetric(
        semconv.TOKENS,
        MetricKind.COUNTER,
        Unit.TOKENS,
        "Tokens that the rank has processed, as given to mark_step(tokens=).",
        BY_RANK,
        of_figures(lambda one: one.tokens, lambda one: one.tokens),
    ),
    NumberMetric(
        semconv.FLOPS,
        MetricKind.COUNTER,
        Unit.FLOPS,
        "Floating-point operations of the rank, as given to mark_step(flops=).",
        BY_RANK,
        of_figures(lambda one: one.flops, lambda one: one.flops),
    ),
    NumberMetric(
        semconv.GRADIENT_SYNC_SECONDS,
        MetricKind.GAUGE,
        Unit.SECONDS,
        "How long DDP reduced gradients in the newest step that it has timed itself: one of the first ten, or every "
        "hundredth. On a device by the device's clock.",
        BY_RANK,
        of_figures(lambda one: one.sync_ns / 1e9, lambda one: one.syncs_timed),
    ),
    NumberMetric(
        semconv.GRADIENT_SYNC_EXPOSED_SECONDS,
        MetricKind.GAUGE,
        Unit.SECONDS,
        "How much of that the computation of gradients did not hide.",
        BY_RANK,
        of_figures(lambda one: (one.sync_ns - one.sync_overlap_ns) / 1e9, lambda one: one.syncs_timed),
    ),
)
