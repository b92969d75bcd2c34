"""The ranks' processes, observed from outside: whether they run, when and how they died, and their stacks."""
