"""The incident of a run, from its first verdict to its end: its waits, their ages, its epochs and markers."""
