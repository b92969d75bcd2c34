"""`otel-torchdist graph`: how a job's ranks share the work, as text and JSON."""
