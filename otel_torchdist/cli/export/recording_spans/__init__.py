"""Spans of calls recorded by other tools: pure functions from histories and verdicts to finished spans."""
