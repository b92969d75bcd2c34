"""Starts an agent that outlives the rank that starts it, and restarts the agent when it ends."""
