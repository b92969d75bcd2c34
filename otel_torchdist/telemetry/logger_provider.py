"""The logger provider that OpenTelemetry's environment variables ask for: where stall events go."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, Final, cast

from opentelemetry.environment_variables import OTEL_LOGS_EXPORTER
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.environment_variables import OTEL_EXPORTER_OTLP_LOGS_PROTOCOL
from opentelemetry.sdk.resources import Resource

from otel_torchdist.telemetry.exporter_lookup import by_protocol, load_entry_point
from otel_torchdist.telemetry.private_random import give_exporters_private_random

_LOGS_GROUP: Final = "opentelemetry_logs_exporter"

_logger = logging.getLogger("otel_torchdist")


def build_logger_provider_from_environment(resource: Resource) -> LoggerProvider | None:
    """Build a provider for the exporters in `OTEL_LOGS_EXPORTER`; None when there is nothing to export to.

    Unset means none, for the same reason as with metrics: a Jaeger takes traces only. The stall's sentence goes to
    Python's `logging` in any case.
    """
    names = [name.strip() for name in os.environ.get(OTEL_LOGS_EXPORTER, "").split(",")]
    exporters = [_exporter(name) for name in dict.fromkeys(names) if name.lower() not in ("", "none")]
    found = [exporter for exporter in exporters if exporter is not None]
    if not found:
        return None
    give_exporters_private_random()
    provider = LoggerProvider(resource=resource, shutdown_on_exit=False)
    for exporter in found:
        provider.add_log_record_processor(BatchLogRecordProcessor(exporter, schedule_delay_millis=200))
    return provider


def _exporter(name: str) -> Any | None:
    try:
        loaded = load_entry_point(_LOGS_GROUP, by_protocol(name, OTEL_EXPORTER_OTLP_LOGS_PROTOCOL))
        return cast("Callable[[], Any]", loaded)()
    except Exception as error:  # not installed, a certificate that is missing, a timeout that is no number, …
        _logger.warning(
            "%s=%.100s: the exporter cannot be built (%s): no events go there", OTEL_LOGS_EXPORTER, name, error
        )
        return None
