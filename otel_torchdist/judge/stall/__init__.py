"""Turns tapes into verdicts: which ranks hold up the others, since when, and where. Never imports torch."""
