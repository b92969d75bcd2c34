"""The archive of whole runs: what a tape's ring overwrites, kept in files of self-contained segments."""
