"""Ranks that take steps together until rank 1 is killed, in all attempts but the last, while an agent looks on."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

STEPS, CRASHES_AT = 40, 30


def main() -> None:
    """Take steps."""
    dist.init_process_group("gloo")
    crashes = int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < int(sys.argv[1])
    for step in range(STEPS):
        if crashes and step == CRASHES_AT and dist.get_rank() == 1:
            while not [*Path(os.environ["OTEL_PYTHON_TORCHDIST_TAPE_DIR"]).glob("prometheus/*.json")]:
                time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(8))
        sys.stderr.write(f"step {step}\n")  # at once: `print` writes the end of the line by itself
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except RuntimeError:
        # A rank with much to clean up. A launcher that is gone before the verdict has no standard error any more.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(2)
        raise
