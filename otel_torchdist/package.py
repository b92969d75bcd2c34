"""What OpenTelemetry's own tooling expects from an instrumentation package."""

INSTRUMENTATION_NAME = "torch_distributed"
"""The entry point's name, and so the name in ``OTEL_PYTHON_DISABLED_INSTRUMENTATIONS``."""

OLDEST_TORCH = (2, 8)

_instruments = ("torch >= 2.8",)

_supports_metrics = True
