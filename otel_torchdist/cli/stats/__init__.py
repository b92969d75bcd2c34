"""`otel-torchdist stats`: what the calls of a run add up to, as tables, JSON and CSV."""
