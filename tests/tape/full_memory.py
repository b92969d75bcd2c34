"""Runs in a mount namespace of its own: mounts one MiB of tmpfs on a directory, and fills it. Argument: the directory.

Prints a JSON object with what happened.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from otel_torchdist.errors import TapeError
from otel_torchdist.model.names import OTHER
from otel_torchdist.node.job.directory import base_directory, job_directory
from otel_torchdist.tape.names.reader import NamesReader
from otel_torchdist.tape.reading.reader import TapeReader
from tests.support.tapes.tapes import begin, new_writer, open_descriptors


def fill(path: Path) -> None:
    """Take all the space that is left."""
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            return


def too_large(base: Path) -> dict[str, object]:
    """A tape that does not fit."""
    before = open_descriptors()
    free = os.statvfs(base).f_bavail
    error = ""
    try:
        new_writer(job_directory(base, "job-0000000000000001"), 16_384)
    except TapeError as refusal:
        error = str(refusal)
    left = [path.name for path in base.rglob("*") if path.is_file()]
    opened = sorted(open_descriptors() - before)
    return {"error": error, "left": left, "opened": opened, "taken": free - os.statvfs(base).f_bavail}


def names_without_room(base: Path) -> dict[str, object]:
    """A tape whose dictionary runs out of space, and gets space again."""
    writer = new_writer(job_directory(base, "job-0000000000000002"))
    reader = TapeReader.of_writer(writer)
    fill(base / "filler")
    ids = [writer.names.intern(f"name {n} " + "x" * 400) for n in range(40)]
    for _ in range(100):
        writer.complete(begin(writer), 1_000, 1_001, 3)
    ended = len(reader.poll().ended)
    (base / "filler").unlink()
    ids += [writer.names.intern(f"name {n} " + "x" * 400) for n in range(40, 60)]
    known = NamesReader(writer.path.with_suffix(".names"))
    read = [known.text(identity) for identity in ids]
    writer.close()
    return {
        "others": ids.count(OTHER),
        "dropped": writer.names.dropped,
        "wrong": sum(text != f"name {n} " + "x" * 400 for n, text in enumerate(read) if ids[n] != OTHER),
        "corrupt": known.corrupt_lines,
        "after": sum(identity != OTHER for identity in ids[40:]),
        "ended": ended,
    }


def main() -> None:
    """Mount, fill, report."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", sys.argv[1]], check=True)
    base = base_directory(Path(sys.argv[1]), on_disk=False)
    print(json.dumps({"too_large": too_large(base), "names": names_without_room(base)}))


if __name__ == "__main__":
    main()
