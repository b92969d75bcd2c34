"""Findings without a stall: calls that do not match, and stragglers."""
