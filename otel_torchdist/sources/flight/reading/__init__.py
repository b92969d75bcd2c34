"""Reads dumps of the flight recorder that anyone may have written, from folders, files and archives."""
