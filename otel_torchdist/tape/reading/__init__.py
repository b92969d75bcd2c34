"""Reads a tape: polls, and what a poll found."""
