"""`otel-torchdist demo`: a real training job, one rank of which is held up, and what is seen of it."""
