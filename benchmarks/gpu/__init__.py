"""Checks on a machine with a GPU, within minutes: `make gpu`. Prints tables for docs/costs.md."""
