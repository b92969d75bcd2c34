"""Follows a tape, and keeps the history that a snapshot of its rank needs."""
