"""Actions that the user has configured for stalls and findings."""
