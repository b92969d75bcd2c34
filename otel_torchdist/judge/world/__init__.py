"""The present and past activity of a run's ranks: the evidence for every verdict."""
