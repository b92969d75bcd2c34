"""Generates the reference pages in `docs` from the code that they describe: `make docs`."""
