"""Finds OpenTelemetry's exporters by name, and makes them harmless in a training process.

gRPC's core installs handlers that run around every `fork`, for example of DataLoader workers. During an export they
write "Other threads are currently calling into gRPC" to stderr, and about one forked child in two thousand died with a
segmentation fault. Children never use our exporters, so the handlers are not needed.

The OTLP exporters draw the jitter of their retries from the module `random`, which the training script has seeded: one
extra draw, at an arbitrary time, makes two runs differ.

The log messages of an exporter about its failures are captured, so that a dead endpoint causes one warning instead of
one per batch.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from importlib.metadata import entry_points
from types import TracebackType
from typing import Final

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.environment_variables import OTEL_EXPORTER_OTLP_PROTOCOL
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags

from otel_torchdist.system.this_process.c_environment import c_variable
from otel_torchdist.telemetry.scope import scope
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan

_OTLP: Final = "otlp"
_BY_PROTOCOL: Final = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
_DEFAULT_PROTOCOL: Final = "grpc"

_logger = logging.getLogger("otel_torchdist")


def load_entry_point(group: str, name: str) -> object:
    """Load an entry point of an installed package.

    Raises:
        LookupError: No installed package has this entry point.
    """
    for entry_point in entry_points(group=group, name=name):
        with without_fork_handlers():
            return entry_point.load()
    raise LookupError(f"no installed package offers {name!r}")


def by_protocol(name: str, protocol_variable: str) -> str:
    """Return the name of an exporter's entry point. For `otlp` it depends on the configured protocol.

    Args:
        name: A name, as in `OTEL_METRICS_EXPORTER`.
        protocol_variable: Variable of the signal, which takes precedence over `OTEL_EXPORTER_OTLP_PROTOCOL`.
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


GRPC_ENABLE_FORK_SUPPORT: Final = "GRPC_ENABLE_FORK_SUPPORT"


@contextmanager
def without_fork_handlers() -> Generator[None, None, None]:
    """Return a context for importing an exporter. If gRPC is first imported in it, gRPC installs no fork handlers.

    gRPC's core reads its variable only at import, and Python's gRPC disables fork handlers unless the variable is set.
    If the user has set it, or already uses gRPC, nothing changes.
    """
    if GRPC_ENABLE_FORK_SUPPORT in os.environ or "grpc" in sys.modules:
        yield
        return
    with c_variable(GRPC_ENABLE_FORK_SUPPORT, "0"):
        yield


_PREFIX: Final = "opentelemetry.exporter."


class LogCapture(logging.Filter):
    """A context that captures the log messages of an exporter's modules on this thread.

    Other users of the same exporter classes log as before. The filter runs before the SDK's filter, which drops
    repeated messages for 20 s: the reason of a failure may repeat a message of another exporter.

    Attributes:
        messages: Captured messages of the exporter's modules.
        attribute_warnings: Captured messages of modules shared by exporters, about attributes that cannot be encoded.
            The export succeeds without these attributes.
    """

    def __init__(self, exporter: object) -> None:
        """Capture the logs of `exporter`."""
        super().__init__()
        # By convention a logger has the name of its module. Base classes log from their own modules.
        self._own = {cls.__module__ for cls in type(exporter).__mro__ if cls is not object}
        shared = {name for name in sys.modules if name.startswith(_PREFIX)}
        self._loggers = [logging.getLogger(name) for name in sorted(self._own | shared)]
        self._thread = 0
        self.messages: list[str] = []
        self.attribute_warnings: list[str] = []

    def __enter__(self) -> LogCapture:
        """Start capturing."""
        self._thread = threading.get_ident()
        self.messages, self.attribute_warnings = [], []
        for logger in self._loggers:
            logger.filters.insert(0, self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop capturing."""
        for logger in self._loggers:
            logger.removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record goes to the log. Otherwise capture its message."""
        if threading.get_ident() != self._thread:
            return True
        (self.messages if record.name in self._own else self.attribute_warnings).append(record.getMessage())
        return False


def give_exporters_private_random() -> None:
    """Give every loaded exporter module of OpenTelemetry a private random generator."""
    for name, module in list(sys.modules.items()):
        if name.startswith(_PREFIX) and getattr(module, "random", None) is random:
            vars(module)["random"] = random.Random()


_TOKEN: Final = "OTEL_EXPORTER_OTLP_HEADERS must contain a token that the receiver accepts"
_GRPC_OR_TLS: Final = "that port may speak gRPC (OTEL_EXPORTER_OTLP_PROTOCOL=grpc) or require TLS (https://)"

# Messages of gRPC, requests and OpenSSL, observed with a real Collector. The first match decides.
_HINTS: Final = (
    (
        "http1.x server",
        "that port speaks HTTP: set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf, or use the port for gRPC",
    ),
    ("WRONG_VERSION_NUMBER", "that port does not speak TLS: use http://"),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "OTEL_EXPORTER_OTLP_CERTIFICATE must name the certificate of the authority that signed the receiver's",
    ),
    ("UNAUTHENTICATED", _TOKEN),
    ("PERMISSION_DENIED", _TOKEN),
    ("code: 401", _TOKEN),
    ("code: 403", _TOKEN),
    ("Connection refused", "no process listens there"),
    ("Socket closed", "that port may require TLS: use https://"),
    ("Connection reset by peer", _GRPC_OR_TLS),
    ("Connection aborted", _GRPC_OR_TLS),
    ("code: 400", _GRPC_OR_TLS),
)

# Older gRPC exporters, such as 1.39's, log the status code without the details that name the reason.
_UNAVAILABLE: Final = "StatusCode.UNAVAILABLE"
_DETAILS: Final = "details: "
_ANY_REASON: Final = "no process listens there, or that port speaks HTTP or requires TLS"


def with_hint(message: str) -> str:
    """Append the probable cause to an exporter's message."""
    text = message.rstrip(". ")
    hint = next((hint for phrase, hint in _HINTS if phrase in text), "")
    if not hint and _UNAVAILABLE in text and _DETAILS not in text:
        hint = _ANY_REASON
    return f"{text} ({hint})" if hint else text


_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_UNSET: Final = Status(StatusCode.UNSET)
_SCOPE: Final = InstrumentationScope(*scope())


def readable_span(span: FinishedSpan, resource: Resource) -> ReadableSpan:
    """Convert a span to a span of the SDK, with a resource."""
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace_id, span.span_id),
        parent=_context(span.trace_id, span.parent_id) if span.parent_id is not None else None,
        resource=resource,
        attributes=_attributes(span) if span.dropped_attributes else span.attributes,
        links=[Link(_context(link.trace_id, link.span_id)) for link in span.links],
        kind=span.kind,
        status=_UNSET if span.error is None else Status(StatusCode.ERROR, span.error),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=_SCOPE,
    )


def _attributes(span: FinishedSpan) -> BoundedAttributes:
    attributes = BoundedAttributes(attributes=span.attributes)
    attributes.dropped = span.dropped_attributes
    return attributes


def _context(trace_id: int, span_id: int) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=_SAMPLED)
