"""The kinds of verdicts and findings, and the identity of an incident."""
