"""The images in docs/pictures, made from real runs: `make pictures`."""
