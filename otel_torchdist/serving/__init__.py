"""HTTP: `/metrics`, and where Prometheus finds it."""
