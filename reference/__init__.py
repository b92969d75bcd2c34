"""The reference pages in `docs`, made from the code that they describe: `make docs`."""
