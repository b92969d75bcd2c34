"""What the calls of all ranks add up to: statistics, parallelism graph, critical path, advice. Pure."""
