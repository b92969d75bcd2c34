"""Statistics of the recorded calls of all ranks: counts, times, waits, bandwidth, and correlation between ranks."""
