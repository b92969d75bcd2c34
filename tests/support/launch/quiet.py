"""The environment of a rank with capture switched on and without exports."""

QUIET = {
    "OTEL_PYTHON_TORCHDIST_ENABLED": "true",
    "OTEL_PYTHON_TORCHDIST_READER": "thread",
    "OTEL_TRACES_EXPORTER": "none",
    "OTEL_METRICS_EXPORTER": "none",
    "OTEL_LOGS_EXPORTER": "none",
    "OTEL_EXPORTER_PROMETHEUS_PORT": "0",
}
