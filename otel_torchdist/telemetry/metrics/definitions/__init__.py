"""The table of all metrics: names, help texts, and sources of their values.

Both the Prometheus and the OpenTelemetry metrics are built from it, so they cannot disagree.
"""

from __future__ import annotations

from typing import Final

from otel_torchdist.telemetry.metrics.definitions.operations import OPERATION_METRICS
from otel_torchdist.telemetry.metrics.definitions.recording import JOB_METRICS, RECORDING_METRICS, VALUE_METRICS
from otel_torchdist.telemetry.metrics.definitions.stalls import PATH_METRICS, STALL_METRICS
from otel_torchdist.telemetry.metrics.definitions.steps import CHECKPOINT_METRICS, STEP_METRICS

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
