"""Builds the exporters in a declarative configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final, cast

from otel_torchdist.telemetry.export.declared.package import ConfigurationPackage
from otel_torchdist.telemetry.export.environment import without_password
from otel_torchdist.telemetry.export.exporters import load_entry_point, without_fork_handlers
from otel_torchdist.telemetry.export.providers import POINTS_PER_REQUEST
from otel_torchdist.telemetry.export.queued_sink import ExportError

_DEFAULT_GRPC: Final = "http://localhost:4317"
_DEFAULT_HTTP: Final = "http://localhost:4318/v1/"
_DEFAULT_TIMEOUT_S: Final = 10.0
_NO_TIMEOUT_S: Final = 86_400.0
"""Replaces "no limit", which the exporters do not know."""


class Signal(Enum):
    """A kind of telemetry, as named in entry points and in paths of OTLP over HTTP."""

    TRACES = "traces"
    METRICS = "metrics"
    LOGS = "logs"


def build_exporter(model: Any, signal: Signal, package: ConfigurationPackage) -> Any:
    """Build an exporter.

    Args:
        model: `SpanExporter`, `PushMetricExporter` or `LogRecordExporter` of the package's models.
        signal: The kind of telemetry.
        package: Builds exporters other than OTLP.

    Raises:
        Exception: The exporter cannot be built: a package or a file is missing, or a value is invalid.
    """
    exporter = model.otlp_grpc or model.otlp_http
    if exporter is None:
        factories = {
            Signal.TRACES: package.span_exporter,
            Signal.METRICS: package.metric_exporter,
            Signal.LOGS: package.log_exporter,
        }
        with without_fork_handlers():
            return factories[signal](model)
    build = _otlp_over_grpc if model.otlp_grpc is not None else _otlp_over_http
    options = {"headers": package.headers(exporter.headers, exporter.headers_list)}
    if signal is Signal.METRICS:
        options["preferred_temporality"] = package.temporality(exporter.temporality_preference)
        options["preferred_aggregation"] = package.histogram_aggregation(exporter.default_histogram_aggregation)
        options["max_export_batch_size"] = POINTS_PER_REQUEST
    return build(exporter, signal, options)


def destination(model: Any) -> str:
    """Return an exporter's name and endpoint, for messages: `otlp_grpc http://collector:4317`, `console`."""
    for name, default in (("otlp_grpc", _DEFAULT_GRPC), ("otlp_http", _DEFAULT_HTTP)):
        exporter = getattr(model, name)
        if exporter is not None:
            return f"{name} {without_password(exporter.endpoint or default)}"
    others = {"console": model.console, "otlp_file": model.otlp_file_development, **model.additional_properties}
    return next((name for name, value in others.items() if value is not None), next(iter(others)))


def _otlp_over_grpc(model: Any, signal: Signal, options: Mapping[str, Any]) -> Any:
    exporter = _otlp_class(signal, "otlp_proto_grpc")
    import grpc  # imported late, and after the exporter: see `without_fork_handlers`

    endpoint = model.endpoint or _DEFAULT_GRPC
    compressions = {"none": grpc.Compression.NoCompression, "gzip": grpc.Compression.Gzip}
    is_insecure = endpoint.startswith("http://")
    if "://" not in endpoint:
        is_insecure = bool(model.tls and model.tls.insecure)
    return exporter(
        endpoint=endpoint,
        insecure=is_insecure,
        credentials=None if is_insecure else _credentials(model.tls),
        timeout=_timeout_s(model.timeout),
        compression=_chosen(compressions, model.compression, "compression"),
        **options,
    )


def _otlp_over_http(model: Any, signal: Signal, options: Mapping[str, Any]) -> Any:
    exporter = _otlp_class(signal, "otlp_proto_http")
    from opentelemetry.exporter.otlp.proto.http import Compression

    compressions = {"none": Compression.NoCompression, "gzip": Compression.Gzip, "deflate": Compression.Deflate}
    if model.encoding is not None and model.encoding.value != "protobuf":
        raise ExportError(f"encoding {model.encoding.value} is not supported")
    tls = model.tls
    return exporter(
        endpoint=model.endpoint or f"{_DEFAULT_HTTP}{signal.value}",
        certificate_file=tls.ca_file if tls else None,
        client_key_file=tls.key_file if tls else None,
        client_certificate_file=tls.cert_file if tls else None,
        timeout=_timeout_s(model.timeout),
        compression=_chosen(compressions, model.compression, "compression"),
        **options,
    )


def _otlp_class(signal: Signal, name: str) -> Callable[..., Any]:
    return cast("Callable[..., Any]", load_entry_point(f"opentelemetry_{signal.value}_exporter", name))


def _credentials(tls: Any) -> Any:
    """Return the certificates and keys in a configuration; None for the system's certificates.

    Raises:
        OSError: A file cannot be read.
    """
    if tls is None or not (tls.ca_file or tls.key_file):
        return None
    import grpc

    return grpc.ssl_channel_credentials(*map(_bytes_in, (tls.ca_file, tls.key_file, tls.cert_file)))


def _bytes_in(path: str | None) -> bytes | None:
    if not path:
        return None
    with open(path, "rb") as stream:
        return stream.read()


def _timeout_s(milliseconds: int | None) -> float:
    if milliseconds is None:
        return _DEFAULT_TIMEOUT_S
    return milliseconds / 1000 or _NO_TIMEOUT_S


def _chosen(choices: Mapping[str, Any], name: str | None, key: str) -> Any:
    chosen = (name or "none").lower()
    if chosen not in choices:
        raise ExportError(f"{key} {chosen} is not supported: {', '.join(choices)} are")
    return choices[chosen]
