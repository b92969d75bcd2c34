"""A training job for `otel-torchdist demo`; it uses nothing of otel_torchdist."""
