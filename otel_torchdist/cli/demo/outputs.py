"""Where the demo's spans go: always to a file, and to an OTLP endpoint when one is given."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import MutableMapping
from typing import Final
from urllib.parse import urlsplit

from opentelemetry.environment_variables import OTEL_TRACES_EXPORTER
from opentelemetry.sdk.environment_variables import (
    OTEL_EXPORTER_OTLP_ENDPOINT,
    OTEL_EXPORTER_OTLP_PROTOCOL,
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,
    OTEL_EXPORTER_OTLP_TRACES_PROTOCOL,
)

from otel_torchdist.cli.demo.options import DemoOptions, Protocol
from otel_torchdist.telemetry.exporter_sink import ExporterSink
from otel_torchdist.telemetry.fan_out import FanOutSink
from otel_torchdist.telemetry.file_exporter import file_exporter
from otel_torchdist.telemetry.outputs import Outputs, outputs_from_environment
from otel_torchdist.telemetry.resource import environment_resource

_PORT_OF_OTLP_HTTP: Final = 4318


def demo_outputs(options: DemoOptions) -> Outputs:
    """What the environment asks for, and the file.

    Raises:
        OSError: The file cannot be written.
    """
    set_endpoint(os.environ, options)
    resource = environment_resource()
    outputs = outputs_from_environment(resource)
    file = ExporterSink(file_exporter(options.output), resource, str(options.output))
    return dataclasses.replace(outputs, sink=FanOutSink([file, outputs.sink]))


def set_endpoint(environ: MutableMapping[str, str], options: DemoOptions) -> None:
    """Let the exporters of this process, which read their settings themselves, find the endpoint of the options.

    Without one they find what the environment has; where it has nothing, there is nobody to export to.
    """
    if options.endpoint is None:
        if not any(environ.get(name) for name in (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT)):
            environ.setdefault(OTEL_TRACES_EXPORTER, "none")
        return
    for name in (OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_PROTOCOL):
        environ.pop(name, None)
    environ[OTEL_TRACES_EXPORTER] = "otlp"
    environ[OTEL_EXPORTER_OTLP_ENDPOINT] = options.endpoint
    if options.protocol is not None:
        environ[OTEL_EXPORTER_OTLP_PROTOCOL] = options.protocol.value
    elif _port_of(options.endpoint) == _PORT_OF_OTLP_HTTP:
        environ[OTEL_EXPORTER_OTLP_PROTOCOL] = Protocol.HTTP.value


def _port_of(endpoint: str) -> int | None:
    try:
        return urlsplit(endpoint if "//" in endpoint else f"//{endpoint}").port
    except ValueError:
        return None
