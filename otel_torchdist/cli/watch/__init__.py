"""`otel-torchdist watch`: a running job on this node, from its tapes alone."""
