"""Answers to requests of the agent and other readers: stacks, profiles, rescue, abort."""
