"""Builds and checks a release, up to the upload: `make release`.

`wheels` builds the files. This package checks them as the index and as users will: metadata, contents, an installation
of each file in an empty environment on each supported Python, and a recorded call on each torch at hand. It writes the
bill of materials, the checksums, and the table of what was checked.
"""
