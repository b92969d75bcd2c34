"""Writes a small Python script that hangs as a job did, from its verdict and its recorded calls."""
