"""The parallel world behind recorded calls: its axes, what each is for, and what moves along them. Pure."""
