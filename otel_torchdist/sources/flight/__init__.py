"""PyTorch's flight recorder: reads its dumps, and writes them."""
