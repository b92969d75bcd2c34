"""Reads a tape: polls and their batches."""
