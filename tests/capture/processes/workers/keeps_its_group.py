"""A rank that never destroys its group. Reports when the interpreter does. The argument is a module to import."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import torch.distributed as dist


class Group(dist.ProcessGroup):
    """A group of one."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)

    def getBackendName(self) -> str:  # torch's name
        """Its name."""
        return "said"

    def __del__(self, write: Any = os.write) -> None:
        """Report the destruction. Globals are gone by then."""
        write(1, b"destroyed\n")


if __name__ == "__main__":
    dist.Backend.register_backend("said", Group, devices="cpu")
    dist.init_process_group("said", store=dist.HashStore(), rank=0, world_size=1)
    importlib.import_module(sys.argv[1])
