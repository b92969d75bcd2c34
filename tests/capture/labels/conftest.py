"""Runs the job whose calls are labelled."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.launch.jobs import Jobs
from tests.support.tapes.recorded import Recorded, RecordedTape

RANKS = 4
PARTS = ("fsdp2", "fsdp1", "ddp", "pipelines", "meshes")


@dataclass(frozen=True)
class LabelledJob:
    """What it has recorded.

    Attributes:
        said: What rank 0 has said of itself.
        tapes: The tapes, by rank.
    """

    said: dict[str, Any]
    tapes: list[RecordedTape]

    def part(self, name: str, rank: int) -> list[Recorded]:
        """What one rank has called in one part of the job."""
        parts: list[list[Recorded]] = []
        for operation in self.tapes[rank].operations:
            if operation.name == "barrier":
                parts.append([])
            else:
                parts[-1].append(operation)
        return parts[PARTS.index(name)]


@pytest.fixture(scope="module")
def job(jobs: Jobs) -> LabelledJob:
    """The job."""
    done = jobs.run("labelled", RANKS)
    lines = [json.loads(line) for line in done.ranks[0].out.splitlines() if line.startswith("{")]  # torch 2.8 says more
    return LabelledJob({key: value for line in lines for key, value in line.items()}, done.tapes)
