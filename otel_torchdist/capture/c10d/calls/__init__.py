"""What is called: the schema of an operation, what its calls have in common, and those in flight."""
