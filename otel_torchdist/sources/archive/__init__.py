"""The archive of whole runs: keeps the records that a tape's ring buffer overwrites, in self-contained segments."""
