"""Reads tapes: what a reader does in each turn, and how much of each tape it has read."""
