"""Verdicts on stalls. Pure functions of frozen rank snapshots: nothing is requested or written here."""
