"""A process of two threads that gives way to training, or not: reads `1` for urgent or `0`, line by line."""

import sys
import threading
import time

from otel_torchdist.agent.priority import CALM_S, Priority


def main() -> None:
    """Report each time when it has its place."""
    priority = Priority(weighs_session=True)
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    print("here", flush=True)
    for line in sys.stdin:
        due = time.monotonic() + 0.5 + (CALM_S if line == "0\n" else 0)
        while time.monotonic() < due:
            priority.update(is_urgent=line == "1\n")
            time.sleep(0.05)
        priority.update(is_urgent=line == "1\n")  # this process may not have had a core meanwhile
        print("placed", flush=True)


if __name__ == "__main__":
    main()
