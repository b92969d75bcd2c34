"""What others ask of a rank: stacks, a profile, to save its state, to end; and the signals that announce its end."""
