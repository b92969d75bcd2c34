"""Output shared by commands: words, times, colours, and tables of ranks."""
