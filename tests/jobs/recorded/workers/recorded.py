"""The fault matrix's script on ranks that are not instrumented: `recorded.py FAULT GATE PIDS`.

Once nothing is called any more, a thread writes the dump of gloo's flight recorder as `DUMPS/rank_<rank>` and
`DUMPS/as_json/rank_<rank>.json`. It cannot where the process is dead or stopped, or its GIL is held. Groups that some
faults use for the first time are used once before here: gloo's recorder does not know members that never called.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

sys.path.append(str(Path(__file__).parents[2] / "faults" / "workers"))
import faulty

QUIET_S = 6.0
"""Longer than a busy machine takes from one call to the next, such as for the start of a loader's worker."""
with_stacks = sys.argv[1] == "late"


def pairs_in_circle() -> None:
    """As `circular`, after each pair has met once."""
    pairs = [dist.new_group([one, (one + 1) % faulty.size]) for one in range(faulty.size)]
    for pair in pairs:
        if dist.get_rank(pair) >= 0:
            dist.all_reduce(faulty.gradient, group=pair)
    for pair in (pairs[faulty.rank], pairs[faulty.rank - 1]):
        dist.all_reduce(faulty.gradient, group=pair)


def two_pairs() -> None:
    """Two pairs of ranks that have met before, and in each of them the second comes late."""
    pair = [dist.new_group([0, 1]), dist.new_group([2, 3])][faulty.rank // 2]
    dist.all_reduce(faulty.gradient, group=pair)
    if faulty.rank % 2:
        faulty.wait_for_gate()
    dist.all_reduce(faulty.gradient, group=pair)


faulty.FAULTS |= {"pairs_in_circle": pairs_in_circle, "two_pairs": two_pairs}


def dump_when_quiet() -> None:
    """Write the dump once something has been called, and the recorder's counters stand still."""
    folder = Path(os.environ["DUMPS"])
    before, since = {}, time.monotonic()
    while not before or time.monotonic() - since < QUIET_S:
        time.sleep(0.1)
        counters = json.loads(c10d._dump_fr_trace_json(False, False))["pg_status"]
        if counters != before:
            before, since = counters, time.monotonic()
    write(folder / "as_json" / f"rank_{faulty.rank}.json", c10d._dump_fr_trace_json(True, False))
    write(folder / f"rank_{faulty.rank}", c10d._dump_fr_trace(True, with_stacks, False))


def write(path: Path, content: bytes) -> None:
    """Write a file as a whole."""
    new = path.parent / f".{path.name}"
    new.write_bytes(content)
    new.rename(path)


if __name__ == "__main__":
    threading.Thread(target=dump_when_quiet).start()
    faulty.main()
