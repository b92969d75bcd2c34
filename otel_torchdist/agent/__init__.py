"""The reader of a run's tapes, in a thread of the training process or in a separate process (the agent)."""
