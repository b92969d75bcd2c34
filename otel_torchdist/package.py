"""What OpenTelemetry's own tooling asks of an instrumentation package."""

INSTRUMENTATION_NAME = "torch_distributed"
"""The entry point's name, and so the word for ``OTEL_PYTHON_DISABLED_INSTRUMENTATIONS``."""

_instruments = ("torch >= 2.8",)

_supports_metrics = True
