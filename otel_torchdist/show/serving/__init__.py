"""Serves `/metrics` over HTTP, and publishes its address for Prometheus."""
