"""From tapes to OpenTelemetry spans and metrics. Never imports torch."""
