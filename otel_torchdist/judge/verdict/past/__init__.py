"""Judges finished runs as if somebody had been watching."""
