"""The table of all metrics: names, meanings, and where their values come from.

The Prometheus and the OpenTelemetry metrics are both built from it, so they cannot disagree.
"""
