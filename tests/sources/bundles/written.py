"""Bundles of made-up jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from otel_torchdist.node.job.bundled import FORMAT, BundleManifest
from otel_torchdist.sources.bundles.content import BundleContent
from otel_torchdist.sources.bundles.folder import BundleFolder
from tests.support.tapes.fake_tape import RUN_ID, SECOND, FakeTape

LARGE = 1 << 30
TRACE = f"{0x5555AAAA:032x}"


def evidence(directory: Path, reason: str = "end", **facts: Any) -> BundleContent:
    """The evidence in a job directory."""
    return BundleContent(directory, BundleManifest(FORMAT, f"{RUN_ID:032x}", "node7", reason, **facts))


def job(directory: Path, operations: int = 20, capacity: int = 64, ranks: int = 1) -> Path:
    """A job directory with the tapes of dead ranks, each in a last operation that is open."""
    directory.mkdir(mode=0o700, parents=True)
    for rank in range(ranks):
        tape = FakeTape(directory, rank, ranks, capacity=capacity)
        open_since = tape.begin("barrier", at=SECOND, sequence=operations + 1, thread=2)
        assert open_since == 1
        for sequence in range(1, operations + 1):
            tape.run(at=(sequence + 1) * SECOND, sequence=sequence, message_bytes=sequence * 7919 % 100_003)
        tape.die()
    return directory


def folder(path: Path, max_bytes: int = LARGE) -> BundleFolder:
    """A directory of bundles."""
    return BundleFolder(path, max_bytes)
