"""From tapes to verdicts: who holds everybody up, since when, and where. Never imports torch."""
