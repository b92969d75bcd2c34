"""`otel-torchdist diagnose`: the last state of each rank of a run, from its tapes alone."""
