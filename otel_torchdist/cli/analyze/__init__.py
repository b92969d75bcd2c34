"""`otel-torchdist analyze`: an analysis of a job's calls, as text, JSON, CSV and HTML."""
