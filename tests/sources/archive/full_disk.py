"""Runs in a mount namespace of its own: mounts 256 kB of tmpfs on a directory, and archives until it is full, and on.

Argument: the directory. Prints a JSON object with what happened.
"""

import json
import logging
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import otel_torchdist.sources.archive.writer as writer
from tests.sources.archive.made import names_beside, operations, segment
from tests.sources.archive.opened import times_archived

ROWS = 2_000
disk = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(disk)], check=True)
warnings: list[str] = []
handler = logging.Handler()
handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
logging.getLogger("otel_torchdist").addHandler(handler)
logging.getLogger("otel_torchdist").setLevel(logging.INFO)
writer.FIRST_PAUSE_S = writer.LONGEST_PAUSE_S = 0.05
writer.MAX_WAITING_BYTES = 100_000

filler = disk / "filler"
filler.write_bytes(b"x" * 150_000)
archive = disk / "archive"
names = names_beside(Path(tempfile.mkdtemp()))
under_test = writer.ArchiveWriter(archive, 1 << 30)
slowest = 0.0


def put(segments: range) -> None:
    """Archive segments, and notice how long the caller waits."""
    global slowest
    for number in segments:
        made = segment(operations(1 + number * ROWS, ROWS), 1 + (number + 1) * ROWS)
        began = time.perf_counter()
        under_test.put(made, names)
        slowest = max(slowest, time.perf_counter() - began)
        time.sleep(0.05)


put(range(20))
while not under_test.dropped:
    time.sleep(0.01)
dropped = under_test.dropped
filler.unlink()
time.sleep(0.3)
put(range(20, 22))
under_test.close(5.0)
times = times_archived(archive)[0]
print(
    json.dumps(
        {
            "warnings": warnings,
            "dropped": under_test.dropped,
            "dropped_while_full": dropped,
            "archived": len(times),
            "twice": sum(count > 1 for count in times.values()),
            "newest": max(times),
            "slowest_s": slowest,
        }
    )
)
