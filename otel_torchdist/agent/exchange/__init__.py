"""The exchange between agents of different nodes, so that one agent sees all ranks when a stall is near."""
