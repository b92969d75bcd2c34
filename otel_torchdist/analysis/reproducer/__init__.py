"""Writes a small script that hangs as a job did: from a verdict and the recorded calls to a plan, then to Python."""
