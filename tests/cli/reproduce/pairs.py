"""A job that hangs, the script that reproduces it, and the verdicts on both."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.analysis.reproducer.facts import ScriptOrigin
from otel_torchdist.analysis.reproducer.plan import plan
from otel_torchdist.analysis.reproducer.script import Script
from otel_torchdist.analysis.reproducer.source import source_of
from otel_torchdist.cli.reproduce import diagnosis_and_calls
from otel_torchdist.config import Config
from otel_torchdist.errors import TapeError
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.model.history import RankHistory
from otel_torchdist.node.job.runs.runs import index_of
from otel_torchdist.runs.diagnosis.diagnosis import Diagnosis
from tests.cli.export.hung_jobs import faulty
from tests.support.launch.quiet import QUIET
from tests.support.launch.torchrun import Torchrun
from tests.support.launch.warm_python import WarmPython
from tests.support.waiting import until

THRESHOLD_S: Final = 1.0
MAX_S: Final = 240.0
"""Time until a verdict. A job starts in seconds, unless torch is read from a busy disk."""
UNHURRIED: Final = "--monitor-interval=10"
"""Gloo aborts one of the ranks that disagree, and torchrun would end the others 0.1 s later, before all have called.

Beside a rank that was killed it could end the others before one has recorded its exception: then nothing that ranks
themselves record shows which of them was first, and no agent watches them here.
"""
_RULES: Final = StallRules.from_config(Config.from_environment({}), THRESHOLD_S)


@dataclass(frozen=True)
class Pair:
    """A job and the script that reproduces it.

    Attributes:
        original: The verdict on the job.
        script: Description of the script.
        source: Text of the script.
        copy: The verdict on the script.
        log: What torchrun has printed about the script, if that ends by itself.
    """

    original: Verdict
    script: Script
    source: str
    copy: Verdict
    log: str


def pair_of(
    python: WarmPython, base: Path, folder: Path, fault: str, kind: str, ranks: tuple[int, ...], size: int
) -> Pair:
    """Cause a fault, write the script, run it, and take the verdicts on both.

    Args:
        python: Interpreter that forks the job and the script.
        base: Base directory of tapes.
        folder: Folder for other files.
        fault: Name of the fault in the worker.
        kind: Kind of the expected verdict.
        ranks: Ranks that the verdict names.
        size: Number of ranks of the job.
    """
    job = faulty(python, base / "job", folder / "job", fault, size, GOOD_STEPS="4")
    try:
        diagnosis, histories = verdict_in(base / "job", kind, ranks)
    finally:
        job.kill()
        job.close()
    original = diagnosis.post_mortem.verdict
    assert original is not None
    origin = ScriptOrigin("a test", diagnosis.verdict_text, size, "a test")
    script = plan(original, diagnosis.post_mortem.moment.world, histories, origin)
    source = source_of(script, "hang.py")
    with _running(python, base / "copy", folder / "copy", source, len(script.steps)) as torchrun:
        at = original.operation, script.sequence
        copy = verdict_in(base / "copy", kind, script.named, at=at)[0].post_mortem.verdict
        assert copy is not None
        if kind == "dead":
            torchrun.wait(MAX_S)
    return Pair(original, script, source, copy, torchrun.log)


@contextlib.contextmanager
def _running(python: WarmPython, tapes: Path, folder: Path, source: str, ranks: int) -> Iterator[Torchrun]:
    """Run a script under torchrun with our instrumentation."""
    folder.mkdir()
    script = folder / "hang.py"
    script.write_text(source)
    environ = {
        **QUIET,
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": str(int(THRESHOLD_S * 1000)),
        "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(tapes),
    }
    command = ["--standalone", f"--nproc-per-node={ranks}", UNHURRIED, script]
    torchrun = Torchrun(python, folder / "output", command, environ)
    try:
        yield torchrun
    finally:
        for pid in _ranks_in(tapes):  # a stopped process handles no other signal
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        torchrun.close()


def _ranks_in(tapes: Path) -> list[int]:
    """Process ids of the ranks that have written tapes."""
    with contextlib.closing(index_of(tapes.glob("job-*"))) as index:
        return [tape.identity.pid for run in index.runs for tape in run.tapes if tape.is_alive()]


def verdict_in(
    tapes: Path, kind: str, ranks: tuple[int, ...], at: tuple[str, int] | None = None
) -> tuple[Diagnosis, list[RankHistory]]:
    """Wait for a verdict on the only run in a directory of tapes; return it with the calls.

    Slow starts may cause other verdicts before.

    Args:
        tapes: The directory.
        kind: Kind of the verdict.
        ranks: The ranks that it names.
        at: The operation that it is about, and the operation's position in its group; None for any.
    """
    seen: list[object] = []

    def found() -> tuple[Diagnosis, list[RankHistory]] | None:
        for directory in tapes.glob("job-*"):
            with contextlib.suppress(TapeError), contextlib.closing(index_of([directory])) as index:
                for run in index.runs:
                    diagnosis, histories = diagnosis_and_calls(run, _RULES)
                    verdict = diagnosis.post_mortem.verdict
                    if verdict is not None:
                        where = verdict.operation_id if verdict.mismatch is None else verdict.mismatch.operation_id
                        place = verdict.operation, where.sequence
                        seen[:] = verdict.kind.value, verdict.ranks, place
                        if (verdict.kind.value, verdict.ranks) == (kind, ranks) and at in (None, place):
                            return diagnosis, histories
        return None

    return until(found, MAX_S, lambda: f"no verdict {kind} on {ranks} at {at}; the last one: {seen}")
