"""Where the demo's spans go: always to a file, and to an OTLP endpoint when one is given."""

from __future__ import annotations

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
from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_OTLP_FILE

_PORT_OF_OTLP_HTTP: Final = 4318
_FILE: Final = "torchdist_otlp_json"


def set_outputs(environ: MutableMapping[str, str], options: DemoOptions) -> None:
    """Let the agent, which has the environment of the job, export to the file and to the endpoint of the options.

    Without one it exports to what the environment has; where it has nothing, there is nobody to export to.
    """
    _set_endpoint(environ, options)
    others = [name for name in environ.get(OTEL_TRACES_EXPORTER, "otlp").split(",") if name.strip() not in ("", "none")]
    environ[OTEL_TRACES_EXPORTER] = ",".join([*others, _FILE])
    environ[OTEL_PYTHON_TORCHDIST_OTLP_FILE] = str(options.output.resolve())


def _set_endpoint(environ: MutableMapping[str, str], options: DemoOptions) -> None:
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


def endpoint_in(environ: MutableMapping[str, str]) -> str:
    """The OTLP endpoint that an environment names; '' when there is none."""
    if "otlp" not in environ.get(OTEL_TRACES_EXPORTER, "otlp").split(","):
        return ""
    return environ.get(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT) or environ.get(OTEL_EXPORTER_OTLP_ENDPOINT) or ""


def _port_of(endpoint: str) -> int | None:
    try:
        return urlsplit(endpoint if "//" in endpoint else f"//{endpoint}").port
    except ValueError:
        return None
