"""What the recorded calls of all ranks add up to: counts, times, waiting, bandwidth, and what belongs together."""
