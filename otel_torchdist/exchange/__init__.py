"""Agents of different nodes speak with each other while a stall is near, so that one of them sees all ranks."""
