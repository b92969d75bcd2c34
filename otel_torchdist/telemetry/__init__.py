"""OpenTelemetry spans and metrics from tapes. Never imports torch."""
