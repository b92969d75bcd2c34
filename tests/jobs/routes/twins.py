"""The two runs of a worker, side by side: what is on the tapes, and what was counted without us."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.launch.jobs import Job, Jobs
from tests.support.profiled import names_of
from tests.support.ranks.twin import ALONE, RECORDED
from tests.support.tapes.recorded import Recorded, RecordedTape

WORKERS = Path(__file__).parent / "workers"
TIMEOUT_S = 150.0
MARK = "# issues"
COMPILES_QUICKLY = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_VEC_ISA_OK": "0"}
"""Inductor otherwise starts processes that import torch again, to compile and to query the processor's features."""


@dataclass(frozen=True)
class Taken:
    """A route as one rank took it.

    Attributes:
        rank: The rank.
        operations: The operations on its tape.
        dispatched: How many operations of each name torch's profiler saw pass the dispatcher in the run without us.
        gloo: How many operations gloo was given in the run without us, by the group's ranks and order.
    """

    rank: int
    operations: list[Recorded]
    dispatched: Counter[str]
    gloo: Counter[str]


@dataclass(frozen=True)
class Twin:
    """Both runs of a worker.

    Attributes:
        tapes: Tapes of the recorded run, by rank.
        routes: By name, what each rank did.
        marked: Functions and lines that are marked in the worker as those that issue operations.
    """

    tapes: list[RecordedTape]
    routes: dict[str, list[Taken]]
    marked: set[tuple[str, int]]


class Alone:
    """Runs workers without us, each once.

    Attributes:
        environ: Additions to the environment of all runs.
    """

    def __init__(self, jobs: Jobs, compiled: Path) -> None:
        self.environ = {**COMPILES_QUICKLY, "TORCHINDUCTOR_CACHE_DIR": str(compiled)}
        self._jobs = jobs
        self._known: dict[str, Job] = {}

    def of(self, worker: str, ranks: int) -> Job:
        """The run of a worker on a number of ranks."""
        if worker not in self._known:
            script = str(WORKERS / worker)
            self._known[worker] = self._jobs.run(script, ranks, ALONE, environ=self.environ, timeout_s=TIMEOUT_S)
        return self._known[worker]


class Twins:
    """Runs workers when they are first needed."""

    def __init__(self, jobs: Jobs, alone: Alone, environ: Mapping[str, str]) -> None:
        self._jobs = jobs
        self._alone = alone
        self._environ = {**alone.environ, **environ}
        self._known: dict[str, Twin | AssertionError] = {}

    def of(self, worker: str, ranks: int) -> Twin:
        """Both runs of a worker on a number of ranks; if they failed once, they are not tried again."""
        if worker not in self._known:
            try:
                self._known[worker] = self._run(worker, ranks)
            except AssertionError as error:
                self._known[worker] = error
        known = self._known[worker]
        if isinstance(known, AssertionError):
            raise known
        return known

    def _run(self, worker: str, ranks: int) -> Twin:
        script = WORKERS / worker
        alone = self._alone.of(worker, ranks)
        recorded = self._jobs.run(str(script), ranks, RECORDED, environ=self._environ, timeout_s=TIMEOUT_S)
        assert not alone.tapes
        routes: dict[str, list[Taken]] = {}
        for rank, (done, tape) in enumerate(zip(alone.ranks, recorded.tapes, strict=True)):
            for step, counts in enumerate(done.lines(), 1):
                operations = [operation for operation in tape.operations if operation.raw.step == step]
                dispatched, gloo = names_of(counts["dispatched"]), Counter(counts["gloo"])
                routes.setdefault(counts["route"], []).append(Taken(rank, operations, dispatched, gloo))
        return Twin(recorded.tapes, routes, marked_lines(script.with_suffix(".py")))


def marked_lines(script: Path) -> set[tuple[str, int]]:
    """The lines of a script that carry the mark, each with its innermost function."""
    source = script.read_text()
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    marked: set[tuple[str, int]] = set()
    for number, line in enumerate(source.splitlines(), 1):
        if line.endswith(MARK):
            around = [node for node in functions if node.lineno <= number <= (node.end_lineno or 0)]
            marked.add((max(around, key=lambda node: node.lineno).name, number))
    return marked


def gloo_operations(taken: Taken) -> Counter[str]:
    """How many gloo operations the operations of a tape correspond to, by group."""
    counts: Counter[str] = Counter()
    for operation in taken.operations:
        group = operation.group
        counts[f"{','.join(map(str, group.ranks))}/{group.nth}"] += _made_by_gloo(operation, taken.rank)
    return counts


def _made_by_gloo(operation: Recorded, rank: int) -> int:
    """One, except for operations that gloo composes of others, and those that it has refused."""
    members = operation.group.ranks
    if operation.failure:
        return 0
    if operation.name == "reduce_scatter":  # one all-reduce for each part
        return len(members)
    if operation.name == "reduce_scatter_tensor_coalesced":
        return operation.signature.tensors
    if operation.name == "monitored_barrier":  # rank 0 receives from and sends to each of the others
        return 2 * (len(members) - 1) if rank == members[0] else 2
    return 1
