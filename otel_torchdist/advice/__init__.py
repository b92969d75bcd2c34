"""What to look into, each with the figures behind it. Pure."""
