"""All names visible to users: spans, attributes, metrics, events. They are experimental until 1.0.

Our attributes and metrics start with `torchdist`. OpenTelemetry's names (`error.type`, `code.*`) are used where they
exist. Attribute names contain no units: durations are in seconds, sizes in bytes.
"""

from otel_torchdist.telemetry.semconv.attributes import *
from otel_torchdist.telemetry.semconv.names import *
