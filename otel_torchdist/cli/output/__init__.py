"""Output shared by commands: words, times, colors, and tables of ranks."""
