"""The process groups of this rank."""
