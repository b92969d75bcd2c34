"""Exchange between the agents of different nodes, so that one of them sees all ranks when a stall is near."""
