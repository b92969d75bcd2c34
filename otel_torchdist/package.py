"""Constants that OpenTelemetry's tooling expects in an instrumentation package."""

INSTRUMENTATION_NAME = "torch_distributed"
"""Name of the entry point, and the name in ``OTEL_PYTHON_DISABLED_INSTRUMENTATIONS``."""

OLDEST_TORCH = (2, 8)

_instruments = ("torch >= 2.8",)

_supports_metrics = True
