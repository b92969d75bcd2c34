"""Remote procedure calls."""
