"""Runs in a mount namespace of its own: mounts 64 MB of tmpfs on a directory, in which no agent ever cleans up.

Argument: the directory. Prints a JSON object with what happened.
"""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

from otel_torchdist.node.job.directory import base_directory, job_directories, job_directory
from otel_torchdist.node.job.room import RankCleaning, tape_limits
from otel_torchdist.tape.identity import identify
from otel_torchdist.tape.writer import TapeWriter

TAPES = 120
WANTED = 16_384


def free(base: Path) -> int:
    """Bytes that are left."""
    facts = os.statvfs(base)
    return facts.f_bavail * facts.f_frsize


def begin_and_end(base: Path, cleaning: RankCleaning, first: int) -> tuple[int, int]:
    """Create tapes, four in each job, as ranks do; return how many could be, and the least space between two."""
    created, least = 0, free(base)
    for number in range(TAPES):
        cleaning.before_tape(base)
        directory = job_directory(base, f"job-{first + number // 4:016x}")
        limits = tape_limits(directory, WANTED, 1)
        TapeWriter(directory, identify(0, 0, 1, limits.records), limits.names_bytes).close()
        gc.collect()  # a mapping has a descriptor of its own
        created += 1
        least = min(least, free(base))
    return created, least


def main() -> None:
    """Mount, run, report."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,mode=700", "tmpfs", sys.argv[1]], check=True)
    base = base_directory(Path(sys.argv[1]), on_disk=False)
    cleaning = RankCleaning(1 << 20, 1 << 40, has_agent=True)
    created, least_free = begin_and_end(base, cleaning, 1)
    jobs = [path.name for path in job_directories(base)]
    (base / "data").write_bytes(bytes(free(base) - (1 << 20)))
    beside_data, _ = begin_and_end(base, cleaning, 1000)
    print(
        json.dumps(
            {
                "wanted": TAPES,
                "created": created,
                "least_free": least_free,
                "jobs": jobs,
                "created_beside_data": beside_data,
            }
        )
    )


if __name__ == "__main__":
    main()
