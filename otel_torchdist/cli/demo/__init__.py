"""`otel-torchdist demo`: a real training job, one rank of which is held up, and what can be observed."""
