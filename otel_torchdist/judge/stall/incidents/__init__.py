"""The incident of a run, from its first verdict to its end: waits and their ages, epochs, markers."""
