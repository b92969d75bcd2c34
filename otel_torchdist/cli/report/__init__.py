"""`otel-torchdist report`: one HTML file about a run."""
