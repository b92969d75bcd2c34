"""Finds exporters by the names that OpenTelemetry's environment variables use."""

from __future__ import annotations

import logging
import os
from importlib.metadata import entry_points
from typing import Final

from opentelemetry.sdk.environment_variables import OTEL_EXPORTER_OTLP_PROTOCOL

from otel_torchdist.telemetry.grpc_fork import without_fork_handlers

_OTLP: Final = "otlp"
_BY_PROTOCOL: Final = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
_DEFAULT_PROTOCOL: Final = "grpc"

_logger = logging.getLogger("otel_torchdist")


def load_entry_point(group: str, name: str) -> object:
    """What an installed package offers under a name.

    Raises:
        LookupError: No package offers it.
    """
    for entry_point in entry_points(group=group, name=name):
        with without_fork_handlers():
            return entry_point.load()
    raise LookupError(f"no installed package offers {name!r}")


def by_protocol(name: str, protocol_variable: str) -> str:
    """The entry point that an exporter's name stands for: `otlp` depends on the protocol that is set.

    Args:
        name: As in `OTEL_METRICS_EXPORTER`.
        protocol_variable: The signal's own variable, which goes before `OTEL_EXPORTER_OTLP_PROTOCOL`.
    """
    if name != _OTLP:
        return name
    for variable in (protocol_variable, OTEL_EXPORTER_OTLP_PROTOCOL):
        protocol = os.environ.get(variable, "").strip()
        if protocol in _BY_PROTOCOL:
            return _BY_PROTOCOL[protocol]
        if protocol:
            _logger.warning(
                "%s=%.100r is not %s: using %s", variable, protocol, " or ".join(_BY_PROTOCOL), _DEFAULT_PROTOCOL
            )
            break
    return _BY_PROTOCOL[_DEFAULT_PROTOCOL]
