"""The reader of a run's tapes, in a thread of the training process or in a process of its own (the agent)."""
