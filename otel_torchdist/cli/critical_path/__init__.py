"""`otel-torchdist critical-path`: what determines how long a step takes."""
