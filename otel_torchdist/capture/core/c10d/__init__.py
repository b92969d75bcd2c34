"""Kernels in the dispatcher, waits and completion."""
