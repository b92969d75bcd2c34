"""The parallel world behind recorded calls: its axes, their roles, and the traffic along them. Pure."""
