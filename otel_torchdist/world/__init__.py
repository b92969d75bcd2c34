"""What the ranks of a run are doing at one moment, and what they did before: all that a verdict may rest on."""
