"""Spans of what was recorded elsewhere and read from files: pure, from histories and verdicts to finished spans."""
