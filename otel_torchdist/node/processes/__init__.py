"""What can be learnt of ranks' processes from outside: whether they run, when and how they died, and their stacks."""
