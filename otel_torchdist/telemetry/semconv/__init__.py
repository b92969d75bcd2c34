"""All names visible to users: spans, attributes, metrics, events. All of them are experimental until 1.0.

Our own attributes and metrics start with `torchdist`; names that OpenTelemetry already has (`error.type`, `code.*`)
are used as they are. Attribute names contain no units: durations are in seconds, sizes in bytes.
"""

from otel_torchdist.telemetry.semconv.attributes import *
from otel_torchdist.telemetry.semconv.names import *
