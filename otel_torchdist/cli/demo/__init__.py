"""`otel-torchdist demo`: a real training job with an injected fault, and its diagnosis."""
