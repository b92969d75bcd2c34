"""Judges finished runs from their tapes and recorded deaths."""
