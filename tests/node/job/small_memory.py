"""Runs in a mount namespace of its own: mounts 64 MB of tmpfs on a directory, and has jobs of 8 ranks use it.

Argument: the directory. Prints a JSON object with what happened.
"""

import gc
import itertools
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

from otel_torchdist.capture.core.recorder import Recorder
from otel_torchdist.model.kinds import TapeState
from otel_torchdist.node.job.directory import base_directory, job_directories, job_directory
from otel_torchdist.node.job.room import Cleaning, RankCleaning, tape_limits
from otel_torchdist.tape.identity import identify
from otel_torchdist.tape.writer import TapeWriter

RANKS = 8
WANTED = 16_384
JOBS = 4
numbers = itertools.count()


def taken(base: Path) -> int:
    """Bytes in use."""
    facts = os.statvfs(base)
    return (facts.f_blocks - facts.f_bfree) * facts.f_frsize


def run_job(base: Path, number: int) -> tuple[list[TapeWriter], list[int]]:
    """Start the ranks of a job as ranks start, with full dictionaries; also returns the records that each can have."""
    writers: list[TapeWriter] = []
    agent = Cleaning(8, 1 << 28)
    for rank in range(RANKS):
        RankCleaning(8, 1 << 28, has_agent=True).before_tape(base)
        directory = job_directory(base, f"job-{number:016x}")
        limits = tape_limits(directory, WANTED, RANKS)
        writer = TapeWriter(directory, identify(rank, rank, RANKS, limits.records), limits.names_bytes)
        while writer.names.intern(f"{next(numbers)} " + "x" * 400):
            pass
        writers.append(writer)
    agent.tapes_added(base, RANKS)
    return writers, [writer.identity.capacity for writer in writers]


def end(writers: list[TapeWriter]) -> None:
    """End the ranks of a job."""
    while writers:
        writers.pop().close()
    gc.collect()  # a mapping has a descriptor of its own


class Warnings(logging.Handler):
    """Keeps log messages."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self.lines.append(record.getMessage())


def record(base: Path) -> dict[str, object]:
    """What the first of the ranks logs and does, twice."""
    handler = Warnings()
    logging.getLogger("otel_torchdist").addHandler(handler)
    for number in (10, 11):
        directory = job_directory(base, f"job-{number:016x}")
        recorder = Recorder(directory, 0, RANKS, WANTED)
        recorder.close(TapeState.FINISHED)
    return {"warnings": handler.lines, "recorded": recorder.tape.identity.capacity}


def main() -> None:
    """Mount, run, report."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,mode=700", "tmpfs", sys.argv[1]], check=True)
    base = base_directory(Path(sys.argv[1]), on_disk=False)
    report: dict[str, object] = {}
    most = 0
    writers: list[TapeWriter] = []
    records: list[int] = []
    for number in range(1, JOBS + 1):
        end(writers)
        Cleaning(8, 1 << 28).now(base)  # as the agent does at its end
        writers, records = run_job(base, number)
        if number == 1:
            report["first"] = {"records": records, "taken": taken(base)}
        most = max(most, taken(base))
    report["most"] = most
    report["last_records"] = records
    report["jobs"] = [int(path.name[-1]) for path in job_directories(base)]
    report["beside"] = run_job(base, 9)[1]
    report |= record(base)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
