"""Analyses of recorded runs: statistics, clocks, critical path, parallelism, timeline, advice and reproducers."""
