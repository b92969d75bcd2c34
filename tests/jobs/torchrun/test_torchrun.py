"""Real jobs under a real torchrun, switched on by the environment variable alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.native.ports import free_port
from otel_torchdist.model.kinds import How, RunIdState, TapeState
from otel_torchdist.model.operations import AWAITED, COARSE
from tests.jobs.torchrun.recording import TWO_RANKS, WORKERS, switched_on
from tests.support.commands.running import kill_processes_of, processes_of, stacks_of
from tests.support.launch.forked_ranks import TOGETHER
from tests.support.launch.stderr import comparable
from tests.support.launch.torchrun import Torchrun
from tests.support.launch.warm_python import Done, WarmPython
from tests.support.native.native_library import KERNELS, environ_of
from tests.support.profiled import names_of
from tests.support.repository import REPOSITORY
from tests.support.tapes.recorded import RecordedTape, read_tapes

DEADLINE_S = 170.0


def started_anew(script: Path, folder: Path, environ: Mapping[str, str]) -> Done:
    """Run a script as two ranks, as a user does; after a timeout its stacks are shown, and nothing of it is left.

    Args:
        script: The training.
        folder: A directory of its own, by which its processes are found.
        environ: Additions to the environment.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)],
        env={**os.environ, "OF_TEST": str(folder), **environ},
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = process.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        pytest.fail(stacks_of(processes_of(folder)))
    finally:
        if process.returncode is None:
            kill_processes_of(folder)  # torchrun starts each rank in a session of its own
            process.communicate()
    return Done(process.returncode, out, err)


@dataclass(frozen=True)
class Pair:
    """The same training, without us and with us."""

    without_us: Done
    with_us: Done
    tapes: list[RecordedTape]

    def reports(self, done: Done) -> list[dict[str, Any]]:
        """The reports of the ranks, by rank."""
        return sorted(done.lines(), key=lambda report: report["rank"])


@pytest.fixture(scope="module", params=[*KERNELS, pytest.param("as a user starts it", marks=pytest.mark.thorough)])
def pair(request: pytest.FixtureRequest, warm_python: WarmPython, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Both trainings."""
    folder, train = tmp_path_factory.mktemp("train"), WORKERS / "train.py"
    tapes = folder / "tapes"
    settings = switched_on(tapes)
    if request.param not in KERNELS:
        without_us, with_us = (started_anew(train, folder, environ) for environ in ({}, settings))
        return Pair(without_us, with_us, read_tapes(tapes))
    environs = {"without": {}, "with": settings | environ_of(request.param)}
    both = [Torchrun(warm_python, folder / name, [*TWO_RANKS, train], environ) for name, environ in environs.items()]
    without_us, with_us = (torchrun.end() for torchrun in both)
    return Pair(without_us, with_us, read_tapes(tapes))


def test_training_sees_no_difference(pair: Pair) -> None:
    """Weights, losses and all random states are equal to the last bit, and so are exit code and standard error."""
    assert (pair.without_us.code, pair.with_us.code) == (0, 0), pair.with_us.err
    assert pair.reports(pair.with_us) == pair.reports(pair.without_us)
    assert comparable(pair.with_us.err) == comparable(pair.without_us.err)


def test_every_collective_of_ddp(pair: Pair) -> None:
    """The tapes have as many of each operation as torch's profiler counted in the training without us, all awaited."""
    assert [tape.identity.rank for tape in pair.tapes] == [0, 1]
    for report, tape in zip(pair.reports(pair.without_us), pair.tapes, strict=True):
        assert Counter(operation.name for operation in tape.operations) == names_of(report["issued"])
        ends = {How[operation.how] for operation in tape.operations}
        assert ends & {*AWAITED}
        assert ends <= {*AWAITED, *COARSE}
        assert {operation.group.description for operation in tape.operations} == {"default_pg"}
        sequences = [operation.raw.sequence for operation in tape.operations]
        assert sequences == list(range(1, len(sequences) + 1))
        assert (tape.lost, tape.status.state) == (0, TapeState.FINISHED)


def test_ranks_report_the_same(pair: Pair) -> None:
    """At each sequence both ranks have the same operation from the same line, and their steps end together."""
    stories = [
        [(one.raw.sequence, one.name, one.signature, one.function, one.line, one.raw.step) for one in tape.operations]
        for tape in pair.tapes
    ]
    assert stories[0] == stories[1]
    marks = [[(mark.step, mark.sequence) for mark in tape.steps] for tape in pair.tapes]
    assert marks[0] == marks[1]
    # Three steps of each of the two optimizers: the second counts when the first is gone.
    assert len(marks[0]) == 6
    assert {function for _, _, _, function, _, _ in stories[0]} == {"main", "train", "reduce_in_python"}


@pytest.mark.parametrize(
    ("backend", "environ"),
    [("gloo", {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}), pytest.param("fake", {}, marks=pytest.mark.thorough)],
)
def test_restarts(warm_python: WarmPython, tmp_path: Path, backend: str, environ: dict[str, str]) -> None:
    """Each attempt has its own tapes and its own run id, the same on both ranks, whether the store is kept or not."""
    tapes = tmp_path / "tapes"
    command = ["--standalone", "--nproc-per-node=2", "--max-restarts=2", WORKERS / "restarts.py", backend]
    done = Torchrun(warm_python, tmp_path / "output", command, switched_on(tapes) | environ).end()
    assert done.code == 0, done.err
    said = sorted((line["attempt"], line["rank"]) for line in done.lines())
    assert said == [(0, 0), (0, 1), (1, 0), (1, 1)]
    recorded = read_tapes(tapes)
    assert len({tape.path.parent for tape in recorded}) == 1
    assert [tape.identity.rank for tape in recorded] == [0, 0, 1, 1]
    first, second = recorded[::2], recorded[1::2]
    for attempt in (first, second):
        assert len({tape.status.run_id for tape in attempt}) == 1
        assert {tape.status.run_id_state for tape in attempt} == {RunIdState.AGREED}
    assert first[0].status.run_id != second[0].status.run_id
    assert [all_reduces(tape) for tape in (*first, *second)] == [1, 1, 2, 2]
    assert (first[1].status.state, first[1].failure) == (TapeState.FAILED, "ZeroDivisionError")
    assert [tape.status.state for tape in second] == [TapeState.FINISHED] * 2


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("backend", "environ", "failing"), [("gloo", {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}, 3), ("fake", {}, 0)]
)
def test_restart_of_two_nodes(
    warm_python: WarmPython, tmp_path: Path, backend: str, environ: dict[str, str], failing: int
) -> None:
    """A restart that torchrun counts only on the node that has failed: all ranks still belong to the new run."""
    options = ["--nnodes=2", "--nproc-per-node=2", "--max-restarts=2", "--rdzv-backend=c10d"]
    script = [WORKERS / "restarts_elsewhere.py", backend, str(failing), tmp_path]
    command = [*options, f"--rdzv-endpoint=127.0.0.1:{free_port()}", *script]
    variables = switched_on(tmp_path / "tapes") | environ | {TOGETHER: str(tmp_path)}
    launchers = [Torchrun(warm_python, tmp_path / f"output-{node}", command, variables) for node in range(2)]
    nodes = [launcher.end() for launcher in launchers]
    assert [done.code for done in nodes] == [0, 0], nodes[0].err + nodes[1].err
    second = [line for done in nodes for line in done.lines() if line["attempt"]]
    assert sorted(line["rank"] for line in second) == [0, 1, 2, 3]
    assert sorted(line["restarts"] for line in second) == [0, 0, 1, 1]
    recorded = read_tapes(tmp_path / "tapes")
    assert [tape.identity.rank for tape in recorded] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert {tape.status.run_id_state for tape in recorded} == {RunIdState.AGREED}
    runs = [{tape.status.run_id for tape in recorded[attempt::2]} for attempt in (0, 1)]
    assert [len(run) for run in runs] == [1, 1]
    assert runs[0] != runs[1]


def all_reduces(tape: RecordedTape) -> int:
    """The number of `all_reduce` operations on a tape."""
    return len(tape.named("all_reduce"))
