"""Traces of PyTorch's profiler and of its execution trace observer: read without trusting them, as histories of ranks."""
