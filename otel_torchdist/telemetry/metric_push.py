"""Sends metrics to an exporter at intervals: the SDK's periodic reader, made safe for a training process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, cast

from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)

from otel_torchdist.telemetry.log_capture import LogCapture

_logger = logging.getLogger("otel_torchdist")


class _FirstLogCapture(LogCapture):
    """Looks at records before the SDK's own filter, which drops every repetition of a message for 20 s.

    The reason of a failure may be such a repetition: of a failure of the exporter for spans.
    """

    def __enter__(self) -> LogCapture:
        entered = super().__enter__()
        for logger in self._loggers:
            logger.filters.insert(0, logger.filters.pop())
        return entered


class MetricPush(PeriodicExportingMetricReader):
    """The SDK's reader, with two differences.

    A dead endpoint is one warning until it works again. And nothing starts in forked children (DataLoader workers),
    which would send old copies of their parent's metrics.
    """

    def __init__(self, exporter: MetricExporter, name: str, **options: Any) -> None:
        """Start the thread.

        Args:
            exporter: Shut down with this reader.
            name: What a warning calls it.
            options: As for `PeriodicExportingMetricReader`.
        """
        # The SDK leaves its keyword arguments untyped.
        self._export = cast("Callable[..., MetricExportResult]", exporter.export)  # pyright: ignore[reportUnknownMemberType]
        self._name = name
        self._log = _FirstLogCapture(exporter)
        self._one_at_a_time = threading.Lock()
        self._failed = False
        super().__init__(exporter, **options)

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:
        with self._one_at_a_time, suppress_instrumentation(), self._log as log:
            try:
                result = self._export(metrics_data, timeout_millis=timeout_millis)
                problem = "" if result is MetricExportResult.SUCCESS else " ".join(log.messages[:1])
            except Exception as error:  # whatever an exporter raises, the next interval tries again
                result, problem = MetricExportResult.FAILURE, repr(error)
        self._report(result is MetricExportResult.FAILURE, problem)

    def _at_fork_reinit(self) -> None:
        """Instead of starting the SDK's thread in a child."""

    def _report(self, failed: bool, problem: str) -> None:
        was_failed, self._failed = self._failed, failed
        if failed and not was_failed:
            _logger.warning(
                "metrics cannot be exported (%s): %s. Training is not affected. It is tried again at every interval, "
                "silently, until it works.",
                self._name,
                problem or "the exporter gives no reason",
            )
        if was_failed and not failed:
            _logger.info("metrics are exported again (%s)", self._name)
