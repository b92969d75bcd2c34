"""A process of two threads that gives way to training, or not: reads `1` for urgent or `0`, line by line.

Its clock jumps over the time for which nothing must have been urgent.
"""

import sys
import threading
import time

from otel_torchdist.agent.limits import CALM_S, Priority


def main() -> None:
    """Report each time when it has its place."""
    now_s = 0.0
    priority = Priority(lowers_session=True, clock=lambda: now_s)
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    print("here", flush=True)
    for line in sys.stdin:
        now_s += CALM_S
        for _ in range(5):  # the kernel changes the weight of a session at most ten times a second
            priority.update(is_urgent=line == "1\n")
            time.sleep(0.11)
        print("placed", flush=True)


if __name__ == "__main__":
    main()
