"""The reader: one class over all tapes of a run, which runs in a thread or in its own process."""
