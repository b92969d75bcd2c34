"""`otel-torchdist analyze`: what the calls of a job show, as text, JSON, CSV and HTML."""
