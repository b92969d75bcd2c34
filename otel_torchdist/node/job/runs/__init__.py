"""The runs of a job, derived from its tapes: the tapes of each run, and the state of its ranks."""
