"""What otel_torchdist costs, measured: `make bench`, or `python -m benchmarks`."""
