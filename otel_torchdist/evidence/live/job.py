"""Looks at all ranks of a live job once."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from otel_torchdist.evidence.live import py_spy, recorder
from otel_torchdist.evidence.live.kernel import KernelView, view_of
from otel_torchdist.evidence.live.ranks import LiveProcess, below, find_ranks
from otel_torchdist.evidence.model import Statement


@dataclass(frozen=True, slots=True)
class LiveRank:
    """What was seen of one process.

    Attributes:
        process: Which it is.
        kernel: What the kernel shows.
        stacks: Its stacks; None if they could not be taken.
    """

    process: LiveProcess
    kernel: KernelView
    stacks: Statement | None


@dataclass(frozen=True, slots=True)
class LiveJob:
    """What was seen of a job.

    Attributes:
        ranks: By ascending rank; processes of unknown rank last.
        dumps: Files with dumps of flight recorders that the ranks have written.
        answers: What the debug server returned of the flight recorders, as JSON by rank.
        asked_ns: When it was asked, in nanoseconds since the epoch.
        warnings: What could not be seen, one line each.
    """

    ranks: tuple[LiveRank, ...]
    dumps: tuple[Path, ...]
    answers: Mapping[int, bytes]
    asked_ns: int
    warnings: tuple[str, ...]

    @property
    def world_size(self) -> int:
        """How many ranks the job has; 0 if that is unknown."""
        return max((one.process.world_size for one in self.ranks), default=0)

    @property
    def elsewhere(self) -> tuple[int, ...]:
        """Ranks of the job that were not seen here, ascending."""
        seen = {one.process.rank for one in self.ranks}
        return tuple(rank for rank in range(self.world_size) if rank not in seen)

    @property
    def statements(self) -> list[Statement]:
        """The stacks, with their ranks."""
        return [one.stacks for one in self.ranks if one.stacks is not None]


def look_at(pids: Iterable[int], asks_for_dumps: bool = False) -> LiveJob:
    """Look at the ranks that these processes are or have started.

    Args:
        pids: Processes of this node.
        asks_for_dumps: Whether to request dumps of the flight recorder where ranks have a pipe for that.
    """
    processes, warnings = find_ranks(pids)
    program = py_spy.program()
    if program is None and processes:
        warnings.append("py-spy is not installed, so there are no stacks; `pip install py-spy` adds them")
    ranks: list[LiveRank] = []
    for process in processes:
        stacks: Statement | None = None
        if program is not None:
            stacks, reason = py_spy.dump(program, process.pid)
            if stacks is None:
                warnings.append(f"no stacks of process {process.pid}: py-spy: {reason}")
            else:
                stacks = dataclasses.replace(stacks, rank=process.rank, local_rank=process.local_rank)
        ranks.append(LiveRank(process, view_of(process.pid), stacks))
    answers: Mapping[int, bytes] = {}
    asked_ns = time.time_ns()
    if recorder.has_debug_server([*processes, *(child for one in processes for child in below(one.pid))]):
        answers, problem = recorder.ask_debug_server()
        warnings += [problem] if problem else []
    dumps: list[Path] = []
    if asks_for_dumps:
        dumps, problems = recorder.request_dumps(processes)
        warnings += problems
    written = [path for process in processes for path in recorder.dumps_of(process)]
    return LiveJob(tuple(ranks), tuple(dict.fromkeys([*dumps, *written])), answers, asked_ns, tuple(warnings))
