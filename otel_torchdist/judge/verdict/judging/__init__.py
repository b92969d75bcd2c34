"""What is judged: one stalled operation, by the standing of its members."""
