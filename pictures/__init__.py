"""The pictures of docs/pictures, made from what really happens: `make pictures`."""
