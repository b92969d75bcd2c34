"""`otel-torchdist advice`: what to look into, with the figures behind it."""
