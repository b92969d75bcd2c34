"""Observers of the tensors of operations: hooks, numerics, replicas, synchronized timing."""
