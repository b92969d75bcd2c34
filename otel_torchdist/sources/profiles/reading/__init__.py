"""Reads traces that anyone may have written, from folders, files and archives."""
