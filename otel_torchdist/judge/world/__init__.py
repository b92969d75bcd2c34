"""What the ranks of a run are doing now and what they did before: everything that a verdict is based on."""
