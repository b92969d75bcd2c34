"""A program that builds the native library into a folder, with the installed package, and prints why it fails."""

from __future__ import annotations

import sys
from pathlib import Path

from otel_torchdist.native.build import build, find_compiler, installed_torch
from otel_torchdist.native.library import NativeError


def main() -> None:
    """Build the library. Works without the extra `cli`."""
    try:
        find_compiler()
        installed_torch()
        print("otel_torchdist: building the native library, which takes half a minute", flush=True)
        build(Path(sys.argv[1]))
    except (NativeError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
