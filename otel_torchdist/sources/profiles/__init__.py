"""PyTorch profiler traces and execution traces: untrusted files, read as histories of ranks."""
