"""Installs this checkout into the user's own environment: `make install`.

It runs in that environment's Python, and needs only the standard library. The native library becomes a part of the
package that is installed, so it serves every user of the environment, and is replaced and removed with the package.
Libraries of `otel-torchdist build-native` are in the cache of one user.
"""
