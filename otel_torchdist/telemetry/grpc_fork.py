"""Keeps gRPC's threads out of the forks of the training process.

gRPC's core, as Python gets it, installs handlers that run around every `fork`: of a DataLoader's workers for one. While
an export is under way they write "Other threads are currently calling into gRPC" to stderr, and about one forked child
in two thousand died with a segmentation fault. Children never use our exporters, so the handlers have nothing to do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

GRPC_ENABLE_FORK_SUPPORT: Final = "GRPC_ENABLE_FORK_SUPPORT"


@contextmanager
def without_fork_handlers() -> Generator[None, None, None]:
    """Import an exporter inside: a gRPC that is first imported here installs no handlers.

    The core reads its variable at import and never again. Where the user has set it, or uses gRPC already, nothing
    changes.
    """
    if GRPC_ENABLE_FORK_SUPPORT in os.environ or "grpc" in sys.modules:
        yield
        return
    os.environ[GRPC_ENABLE_FORK_SUPPORT] = "0"
    try:
        yield
    finally:
        del os.environ[GRPC_ENABLE_FORK_SUPPORT]
