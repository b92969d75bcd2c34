"""Installs this checkout into the user's own environment: `make install`.

It runs in that environment's Python, and needs only the standard library. The native library becomes part of the
installed package, so it serves all users of the environment, and is replaced and removed with the package. In contrast,
`otel-torchdist build-native` writes into the cache of one user.
"""
