"""Traces of PyTorch's profiler and execution traces: read without trusting them, as histories of ranks."""
