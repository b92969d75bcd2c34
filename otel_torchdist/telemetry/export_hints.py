"""What a user may do about spans that cannot be exported, by what the exporter says."""

from __future__ import annotations

from typing import Final

_TOKEN: Final = "OTEL_EXPORTER_OTLP_HEADERS must bring a token that it accepts"
_GRPC_OR_TLS: Final = "that port may speak gRPC (OTEL_EXPORTER_OTLP_PROTOCOL=grpc), or ask for TLS (https://)"

# Texts of gRPC, requests and OpenSSL, as they were seen with a real Collector on the other side; the first one decides.
_HINTS: Final = (
    ("http1.x server", "that port speaks HTTP: OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf, or name the port for gRPC"),
    ("WRONG_VERSION_NUMBER", "that port does not speak TLS: name it with http://"),
    ("CERTIFICATE_VERIFY_FAILED", "OTEL_EXPORTER_OTLP_CERTIFICATE must name the certificate of its authority"),
    ("UNAUTHENTICATED", _TOKEN),
    ("PERMISSION_DENIED", _TOKEN),
    ("code: 401", _TOKEN),
    ("code: 403", _TOKEN),
    ("Connection refused", "nobody listens there"),
    ("Socket closed", "that port may ask for TLS: name it with https://"),
    ("Connection reset by peer", _GRPC_OR_TLS),
    ("Connection aborted", _GRPC_OR_TLS),
    ("code: 400", _GRPC_OR_TLS),
)


def with_hint(complaint: str) -> str:
    """What an exporter has said, and behind it what that probably means."""
    said = complaint.rstrip(". ")
    hint = next((hint for sign, hint in _HINTS if sign in said), "")
    return f"{said} ({hint})" if hint else said
