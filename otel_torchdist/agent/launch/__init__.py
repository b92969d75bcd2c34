"""How a rank starts an agent that outlives it, and notices when the agent is gone."""
