"""What observers see in tensors: statistics, on the host and on devices, and outputs that must be equal."""
