"""Writes tapes of ranks that are in an operation of each of many groups.

Arguments: directory, tapes, groups, members of a group. Prints `ok`, and ends with its input.
"""

import sys
import time
from pathlib import Path

from otel_torchdist.model.kinds import RecordKind, RunIdState
from otel_torchdist.model.names import GroupName, SignatureName
from otel_torchdist.tape.identity import identify
from otel_torchdist.tape.writer import TapeWriter

WORLD = 4_096


def write(directory: Path, rank: int, groups: int, members: int) -> TapeWriter:
    """Write the tape of a rank."""
    tape = TapeWriter(directory, identify(rank, rank, WORLD, 4_096))
    tape.set_run_id(int(directory.name[-1], 16) + 1, RunIdState.AGREED)
    signature = tape.names.intern(SignatureName("all_reduce", "sum", ((4,),), ("float32",), "cpu", 1))
    for nth in range(groups):
        ranks = tuple(range(rank, rank + members))
        group = tape.names.intern(GroupName(str(nth), f"group {nth}", ranks, nth, "gloo", True))
        now = time.monotonic_ns()
        tape.begin(now, 0, 1, 16, group, signature, 0, 0, -1, 0, 1, RecordKind.OPERATION, 0)
    return tape


def main() -> None:
    """Write, and stay."""
    directory, (tapes, groups, members) = Path(sys.argv[1]), map(int, sys.argv[2:])
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    written = [write(directory, rank, groups, members) for rank in range(tapes)]
    print("ok", flush=True)
    sys.stdin.read()
    for tape in written:
        tape.close()


if __name__ == "__main__":
    main()
