"""From tapes to verdicts: which ranks hold up the others, since when, and where. Never imports torch."""
