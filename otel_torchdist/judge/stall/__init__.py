"""Turns tapes into verdicts: which ranks hold up the others, for how long, and at which line. Never imports torch."""
