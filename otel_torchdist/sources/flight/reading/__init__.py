"""Reads untrusted flight recorder dumps, from folders, files and archives."""
