"""All metrics, in the order in which they are shown."""

from __future__ import annotations

from typing import Final

from otel_torchdist.telemetry.metrics.definitions.checkpoints import CHECKPOINT_METRICS
from otel_torchdist.telemetry.metrics.definitions.critical_path import PATH_METRICS
from otel_torchdist.telemetry.metrics.definitions.job import JOB_METRICS
from otel_torchdist.telemetry.metrics.definitions.operations import OPERATION_METRICS
from otel_torchdist.telemetry.metrics.definitions.recording import RECORDING_METRICS
from otel_torchdist.telemetry.metrics.definitions.stalls import STALL_METRICS
from otel_torchdist.telemetry.metrics.definitions.steps import STEP_METRICS
from otel_torchdist.telemetry.metrics.definitions.values import VALUE_METRICS

NUMBER_METRICS: Final = (
    *STALL_METRICS,
    *OPERATION_METRICS,
    *PATH_METRICS,
    *CHECKPOINT_METRICS,
    *STEP_METRICS,
    *RECORDING_METRICS,
    *VALUE_METRICS,
    *JOB_METRICS,
)
