"""Counts what the tape of one rank reports."""
