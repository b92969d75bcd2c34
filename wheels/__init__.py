"""Builds the wheels of a release, with a native library for each minor version of torch: `make wheels`."""
