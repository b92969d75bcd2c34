"""Runs worker scripts as the ranks of a job and reads the tapes that they leave."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.launch.forked_ranks import ORDINARY_END
from tests.support.launch.warm_python import Done, WarmPython
from tests.support.tapes.recorded import RecordedTape, read_tapes


@dataclass(frozen=True)
class Job:
    """A finished job.

    Attributes:
        ranks: Its processes, by rank.
        tapes: What they recorded, by rank and time.
    """

    ranks: list[Done]
    tapes: list[RecordedTape]


class Jobs:
    """Runs jobs; their leftovers are removed with the fixture."""

    def __init__(
        self,
        python: WarmPython,
        workers: Path,
        ends_ordinarily: bool = False,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Nothing runs yet.

        Args:
            python: Runs the jobs.
            workers: The folder with their scripts.
            ends_ordinarily: Whether ranks end as every interpreter does, which takes each half a second of a core.
            environ: Additions to the environment of all ranks.
        """
        self._python = python
        self._workers = workers
        self._environ = {**({ORDINARY_END: "true"} if ends_ordinarily else {}), **(environ or {})}
        self._folders: list[Path] = []

    def run(
        self,
        worker: str,
        ranks: int = 1,
        *arguments: str,
        environ: Mapping[str, str] | None = None,
        codes: Sequence[int] | None = None,
        timeout_s: float = 60.0,
    ) -> Job:
        """Run a worker script as every rank of a job, and check how its processes end.

        Args:
            worker: The script's name in the folder of workers, without suffix.
            ranks: Number of ranks.
            *arguments: Arguments of the script.
            environ: Additions to its environment.
            codes: Exit codes by rank; all 0 if not given.
            timeout_s: Limit on its run time.
        """
        folder = Path(tempfile.mkdtemp(prefix="otel-torchdist-test-", dir="/dev/shm"))
        self._folders.append(folder)
        tapes = folder / "tapes"
        tapes.mkdir(0o700)
        common = {
            "WORLD_SIZE": str(ranks),
            "TAPES": str(tapes),
            "STORE": str(folder / "store"),
            "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(tapes),
            **self._environ,
            **(environ or {}),
        }
        environs = [{"RANK": str(rank), "LOCAL_RANK": str(rank), **common} for rank in range(ranks)]
        done = self._python.run(self._workers / f"{worker}.py", environs, folder, arguments, timeout_s)
        expected = list(codes or [0] * ranks)
        trouble = [f"rank {rank}: exit code {one.code}\n{one.out}\n{one.err}" for rank, one in enumerate(done)]
        assert [one.code for one in done] == expected, "\n".join(trouble)
        return Job(done, read_tapes(tapes))

    def clean_up(self) -> None:
        """Remove leftovers of the jobs."""
        for folder in self._folders:
            shutil.rmtree(folder)
