"""Serves `/metrics` over HTTP, and publishes where Prometheus finds it."""
