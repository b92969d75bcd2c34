"""One rank whose tapes go to a file system of 64 KiB, mounted for this process alone."""

from __future__ import annotations

import ctypes
import os
import subprocess

import torch
import torch.distributed as dist

from tests.support.ranks.rank import join, say

CLONE_NEWNS = 0x20000


def mount_small(path: str) -> str:
    """Mount it in our own namespace; returns the reason if that is forbidden, else ''."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS):
        return os.strerror(ctypes.get_errno())
    for command in (
        ["mount", "--make-rprivate", "/"],
        ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", path],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return done.stderr.strip()
    return ""


say(forbidden=mount_small(os.environ["OTEL_PYTHON_TORCHDIST_TAPE_DIR"]))
for attempt in range(2):
    join(suffix=str(attempt))
    x = torch.ones(3)
    dist.all_reduce(x)
    dist.destroy_process_group()
say(result=x.tolist())
