"""The reader: one class over all tapes of a run, at home in a thread or in a process of its own."""
