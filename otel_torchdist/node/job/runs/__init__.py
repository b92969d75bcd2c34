"""The runs of a job, from its tapes: which tapes make a run, and what became of its ranks."""
