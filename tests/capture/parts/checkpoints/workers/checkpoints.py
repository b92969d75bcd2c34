"""Two ranks that save and load checkpoints in the usual ways, and print what is on disk afterwards."""

from __future__ import annotations

import errno
import json
import os
import tempfile
import threading
import warnings
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from otel_torchdist import mark_step
from tests.support.ranks.rank import join, start_capture

warnings.simplefilter("ignore")


class FullDisk(dcp.FileSystemWriter):
    """A storage without room on rank 1."""

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Write, except on rank 1."""
        if dist.get_rank() == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write_data(plan, planner)


class AfterReturn(dcp.FileSystemWriter):
    """A storage that writes after the saving call has returned."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.has_returned = threading.Event()

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Write."""
        assert self.has_returned.wait(60.0)
        return super().write_data(plan, planner)


class Meanwhile:
    """A part of a state dict that saves another checkpoint when its state is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def state_dict(self) -> dict[str, Any]:
        """Save a checkpoint of this rank alone."""
        dcp.save({"inner": torch.ones(3)}, checkpoint_id=str(self.path), no_dist=True)
        return {"outer": torch.ones(2)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to do."""


def state() -> dict[str, Any]:
    """Return the state to save. Each rank writes about half of it."""
    return {f"weight.{nth}": torch.full((1000, 10), float(nth)) for nth in range(8)}


def size_of(path: Path, rank: int) -> tuple[int, int]:
    """Return the bytes and files that a rank has written."""
    files = [file for file in path.iterdir() if file.name.startswith(f"__{rank}_")]
    return sum(file.stat().st_size for file in files), len(files)


def main() -> None:
    """Save and load."""
    capture = start_capture()
    rank = int(os.environ["RANK"])
    join()
    folder: list[Any] = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)
    base = Path(folder[0])
    found: dict[str, Any] = {"base": str(base)}

    dcp.save(state(), checkpoint_id=base / "first")
    found["first"] = size_of(base / "first", rank)
    mark_step()
    loaded = state()
    dcp.load(loaded, checkpoint_id=str(base / "first"))
    assert torch.equal(loaded["weight.3"], state()["weight.3"])
    mark_step()
    beside = dist.new_group(backend="gloo")
    writer = AfterReturn(base / "second")
    future = dcp.async_save(state(), checkpoint_id=str(base / "second"), storage_writer=writer, process_group=beside)
    writer.has_returned.set()
    future.result()
    found["second"] = size_of(base / "second", rank)
    mark_step()
    file = base / f"rank{rank}.pt"
    torch.save(state(), file)
    torch.load(file)
    found["file"] = file.stat().st_size
    buffer = BytesIO()
    torch.save(state(), buffer)
    with file.open("wb") as stream:
        torch.save(state(), stream)
    mark_step()
    try:
        dcp.save(state(), storage_writer=FullDisk(base / "full"))
    except dcp.api.CheckpointException as error:
        found["error"] = sorted(error.failures)
    try:
        torch.save(state(), base / "no such folder" / "file.pt")
    except RuntimeError as error:
        found["no folder"] = type(error).__name__
    mark_step()
    dcp.save({"app": Meanwhile(base / f"inner{rank}")}, checkpoint_id=str(base / "outer"))
    mark_step()
    odd = base / os.fsdecode(b"odd \xff\xfe name " + b"x" * 200)
    dcp.save({"one": torch.ones(1)}, checkpoint_id=odd)
    mark_step()
    for nth in range(20):
        dcp.save({"one": torch.ones(1)}, checkpoint_id=str(base / f"many{rank}-{nth}"), no_dist=True)
    print(json.dumps(found))
    dist.destroy_process_group()
    capture.uninstall()


main()
