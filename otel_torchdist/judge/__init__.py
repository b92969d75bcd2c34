"""The judge: the state of all ranks, the verdict on what holds a job up, and what is reported about it."""
