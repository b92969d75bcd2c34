"""PyTorch's flight recorder: reads and writes its dumps."""
