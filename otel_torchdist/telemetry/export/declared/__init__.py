"""Outputs as OpenTelemetry's declarative configuration describes them, in OTEL_CONFIG_FILE or in the node's file.

The package `opentelemetry-configuration` reads and checks the file, and builds samplers, limits, views and exporters
other than OTLP. Spans are sent by our own pipeline, because they already have their ids and wait in our own queue. OTLP
exporters are built here, because the package ignores the keys under `tls`.
"""
