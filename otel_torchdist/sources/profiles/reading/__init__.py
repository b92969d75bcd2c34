"""Reads untrusted traces, from folders, files and archives."""
