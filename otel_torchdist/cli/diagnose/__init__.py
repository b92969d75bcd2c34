"""`otel-torchdist diagnose`: what each rank of a run was doing last, from its tapes alone."""
