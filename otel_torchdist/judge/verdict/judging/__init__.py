"""Judges one stalled operation by the standing of its members."""
