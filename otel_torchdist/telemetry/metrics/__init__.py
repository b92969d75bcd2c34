"""Metrics of ranks and nodes, for Prometheus to scrape and for OTLP to push."""
