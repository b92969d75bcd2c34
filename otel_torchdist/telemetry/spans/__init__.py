"""Turns the records of a tape into spans: an anchor for each segment of a step, with its operations under it."""
