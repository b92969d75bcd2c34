"""Wrappers of the operating system: files, locks and ownership, and the end of this process."""
