"""What is wrong or slow though nothing stalls: calls that do not match, and stragglers."""
