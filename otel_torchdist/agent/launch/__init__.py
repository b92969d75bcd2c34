"""Starts an agent that outlives the rank that starts it, and notices when the agent is gone."""
