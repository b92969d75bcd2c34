"""Backends that torch loads from entry points of installed packages, from torch 2.15 on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from torch.distributed import Backend

from tests.jobs.torchrun.recording import TWO_RANKS, WORKERS, switched_on
from tests.support.launch.torchrun import Torchrun
from tests.support.launch.warm_python import WarmPython
from tests.support.native.native_library import KERNELS, environ_of
from tests.support.tapes.recorded import read_tapes

pytestmark = [
    pytest.mark.process,
    pytest.mark.thorough,
    pytest.mark.skipif(
        not hasattr(Backend, "_ensure_backend_registered"), reason="this torch loads no backends from entry points"
    ),
]
GROUP = "torch.distributed.backends"


def install(folder: Path) -> None:
    """Install the package `tiny-backend` in a folder, as pip does: its module, and its metadata."""
    metadata = folder / "tiny_backend-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-backend\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        f"[{GROUP}]\ntiny = tiny_backend:register\ntiny_in_cpp = tiny_backend:register_in_cpp\n"
        "tiny_group = tiny_backend:register_group\n"
    )
    shutil.copy(WORKERS / "tiny_backend.py", folder)


@pytest.mark.parametrize("kernel", KERNELS)
def test_backends_of_entry_points(warm_python: WarmPython, tmp_path: Path, kernel: str) -> None:
    """Each collective on such backends is recorded once by both kernels, under the backend's name.

    Backends in Python and in C++ are alike, and a gloo group beside them is as ever. Of a process group in Python, only
    what it passes on to c10d is recorded, as of a group whose backend has no name. Results are as without us.
    """
    site, tapes = tmp_path / "site", tmp_path / "tapes"
    install(site)
    command = [*TWO_RANKS, WORKERS / "uses_entry_point.py", site]
    ours = {**switched_on(tapes), **environ_of(kernel), "OTEL_PYTHON_TORCHDIST_READER": "none"}
    both = [Torchrun(warm_python, tmp_path / name, command, more) for name, more in (("bare", {}), ("with", ours))]
    bare, done = (torchrun.end() for torchrun in both)
    assert (bare.code, done.code) == (0, 0), done.err
    assert [line["backend"] for line in bare.lines()] == ["tiny", "tiny"]
    assert sorted(map(str, done.lines())) == sorted(map(str, bare.lines()))
    read = read_tapes(tapes)
    assert [tape.identity.kernel.name.lower() for tape in read] == [kernel] * 2
    recorded = [
        [(operation.name, operation.group.backend, operation.has_ended) for operation in tape.operations]
        for tape in read
    ]
    on_tiny = [(name, "tiny", True) for name in ("all_reduce", "all_reduce", "broadcast", "barrier")]
    on_pairs = [(name, backend, True) for backend in ("gloo", "tiny_in_cpp") for name in ("all_reduce", "barrier")]
    assert recorded == [[*on_tiny, *on_pairs, ("all_reduce", "", True)]] * 2
