"""Follows one tape, and keeps what a snapshot of its rank needs to know of before."""
