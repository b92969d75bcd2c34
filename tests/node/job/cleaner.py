"""Cleans up repeatedly until its input ends. Arguments: base, runs to keep, bytes to keep."""

import sys
import threading
from pathlib import Path

from otel_torchdist.node.job.leftovers import clean_up


def main() -> None:
    """Clean up; any exception ends the process with an exit code other than 0."""
    base, keep_runs, keep_bytes = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), ended.set()), daemon=True).start()
    print("ready", flush=True)
    rounds = 0
    while not ended.is_set():
        clean_up(base, keep_runs, keep_bytes)
        rounds += 1
    print(rounds, flush=True)


if __name__ == "__main__":
    main()
