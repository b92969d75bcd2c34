"""A process that watches tapes for deaths: `death_watcher.py [--starved] TAPE…`.

It prints which ranks it holds by a pidfd, and at the end what it has seen of all of them. With `--starved` it has no
descriptor to spare until a line comes on its standard input.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from otel_torchdist.node.processes.death_watch import DeathWatch
from otel_torchdist.tape.reading.reader import TapeReader


def main() -> None:
    """Watch until all have died."""
    starved = sys.argv[1] == "--starved"
    tapes = [TapeReader(Path(path)) for path in sys.argv[1 + starved :]]
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    if starved:
        lowest_free = os.dup(0)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, usual[1]))
    watch = DeathWatch()
    for tape in tapes:
        watch.follow(tape.path, tape.identity, tape.owner)
    nonces = [tape.identity.nonce for tape in tapes]
    print(json.dumps([watch.awaits_end(nonce) for nonce in nonces]), flush=True)
    if starved:
        sys.stdin.readline()
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)
        while not all(watch.awaits_end(nonce) for nonce in nonces):
            time.sleep(0.02)
        print("now", flush=True)
    wait_for(lambda: all(watch.death_of(nonce) for nonce in nonces), 20.0)
    wait_for(lambda: all(death.status is not None for nonce in nonces if (death := watch.death_of(nonce))), 0.5)
    files = len(os.listdir("/proc/self/fd"))
    watch.stop()
    deaths = [watch.death_of(nonce) for nonce in nonces]
    left = len(os.listdir("/proc/self/fd"))
    found = [asdict(death) if death is not None else None for death in deaths]
    print(json.dumps({"deaths": found, "files": [files, left]}), flush=True)


def wait_for(condition: Callable[[], bool], timeout_s: float) -> None:
    """Wait for a condition, or until time is up."""
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


if __name__ == "__main__":
    main()
