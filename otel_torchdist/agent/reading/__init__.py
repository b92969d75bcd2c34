"""Reads tapes: what each turn of a reader does, and how far it has come with each."""
