"""Finds OpenTelemetry's exporters by name, and makes them harmless in a training process.

gRPC's core installs handlers that run around every `fork`, for example of DataLoader workers. During an export they
write "Other threads are currently calling into gRPC" to stderr, and about one forked child in two thousand died with a
segmentation fault. Children never use our exporters, so the handlers are not needed.

The OTLP exporters take the jitter of their retries from the module `random`. Its state belongs to the training script,
which has seeded it: one extra draw, at an arbitrary time, makes two runs differ.

What an exporter logs about its failures is collected, so that a dead endpoint causes one warning, not one per batch.
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
from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan

_OTLP: Final = "otlp"
_BY_PROTOCOL: Final = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
_DEFAULT_PROTOCOL: Final = "grpc"

_logger = logging.getLogger("otel_torchdist")


def load_entry_point(group: str, name: str) -> object:
    """Load what an installed package offers under a name.

    Raises:
        LookupError: No package offers it.
    """
    for entry_point in entry_points(group=group, name=name):
        with without_fork_handlers():
            return entry_point.load()
    raise LookupError(f"no installed package offers {name!r}")


def by_protocol(name: str, protocol_variable: str) -> str:
    """Return the entry point that an exporter's name stands for: `otlp` depends on the configured protocol.

    Args:
        name: As in `OTEL_METRICS_EXPORTER`.
        protocol_variable: The signal's own variable, which takes precedence over `OTEL_EXPORTER_OTLP_PROTOCOL`.
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
    """Import an exporter inside: a gRPC that is first imported here installs no fork handlers.

    gRPC's core reads its variable at import and never again; what is in Python has them off unless the variable is set.
    If the user has set it, or already uses gRPC, nothing changes.
    """
    if GRPC_ENABLE_FORK_SUPPORT in os.environ or "grpc" in sys.modules:
        yield
        return
    with c_variable(GRPC_ENABLE_FORK_SUPPORT, "0"):
        yield


_PREFIX: Final = "opentelemetry.exporter."


class LogCapture(logging.Filter):
    """While entered, keeps what this thread logs to the loggers of an exporter's modules out of the log.

    Other users of the same exporter classes log as before. It sees records before the SDK's own filter, which drops
    every repetition of a message for 20 s: the reason for a failure may be one, after a failure of another exporter.

    Attributes:
        messages: Messages of the exporter, kept out since it was entered.
        complaints: Messages of modules that exporters share. They log each attribute that they cannot encode, and the
            export succeeds all the same.
    """

    def __init__(self, exporter: object) -> None:
        """Capture the logs of `exporter`."""
        super().__init__()
        # By convention a module's logger has the module's name; base classes log from their own modules.
        self._own = {cls.__module__ for cls in type(exporter).__mro__ if cls is not object}
        shared = {name for name in sys.modules if name.startswith(_PREFIX)}
        self._loggers = [logging.getLogger(name) for name in sorted(self._own | shared)]
        self._thread = 0
        self.messages: list[str] = []
        self.complaints: list[str] = []

    def __enter__(self) -> LogCapture:
        """Start capturing."""
        self._thread = threading.get_ident()
        self.messages, self.complaints = [], []
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
        """Return whether a record goes to the log; keep its message if not."""
        if threading.get_ident() != self._thread:
            return True
        (self.messages if record.name in self._own else self.complaints).append(record.getMessage())
        return False


def give_exporters_private_random() -> None:
    """Make every loaded exporter module of OpenTelemetry draw from its own random generator."""
    for name, module in list(sys.modules.items()):
        if name.startswith(_PREFIX) and getattr(module, "random", None) is random:
            vars(module)["random"] = random.Random()


_TOKEN: Final = "OTEL_EXPORTER_OTLP_HEADERS must contain a token that it accepts"
_GRPC_OR_TLS: Final = "that port may speak gRPC (OTEL_EXPORTER_OTLP_PROTOCOL=grpc) or require TLS (https://)"

# Messages of gRPC, requests and OpenSSL, as seen with a real Collector on the other side; the first match decides.
_HINTS: Final = (
    (
        "http1.x server",
        "that port speaks HTTP: set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf, or use the port for gRPC",
    ),
    ("WRONG_VERSION_NUMBER", "that port does not speak TLS: use http://"),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "OTEL_EXPORTER_OTLP_CERTIFICATE must name the certificate of the authority that signed its own",
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


def with_hint(complaint: str) -> str:
    """Append to an exporter's message what it probably means."""
    text = complaint.rstrip(". ")
    hint = next((hint for sign, hint in _HINTS if sign in text), "")
    return f"{text} ({hint})" if hint else text


_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_UNSET: Final = Status(StatusCode.UNSET)
_SCOPE: Final = InstrumentationScope(semconv.SCOPE_NAME)


def readable_span(span: FinishedSpan, resource: Resource) -> ReadableSpan:
    """Convert a span to what the SDK would have created.

    Args:
        span: The span.
        resource: Where it comes from.
    """
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
