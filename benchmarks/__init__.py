"""Benchmarks of the costs of otel_torchdist: `make bench`, or `python -m benchmarks`."""
