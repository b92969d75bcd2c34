"""The critical path of runs while they run, across all nodes."""
