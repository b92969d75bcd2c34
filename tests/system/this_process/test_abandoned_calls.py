"""A thread of ours that is in torch when Python ends does not end the process with SIGABRT."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import contextlib, datetime, sys, threading, time
from torch.distributed import TCPStore
from otel_torchdist.system.this_process.abandoned_calls import BACKGROUND_CALLS

class Ending:
    def __del__(self):
        time.sleep(1.5)

def wait_in_torch():
    with BACKGROUND_CALLS, contextlib.suppress(RuntimeError):
        is_inside.set()
        store.get("never")

ending = Ending()
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=datetime.timedelta(seconds=0.5))
is_inside = threading.Event()
threading.Thread(target=wait_in_torch, daemon=True).start()
is_inside.wait()
time.sleep(0.1)
sys.exit(3)
"""


def test_thread_comes_back_from_torch_after_the_end() -> None:
    """The process has its own exit code. Outside of `BACKGROUND_CALLS` C++ would end it before Python 3.14."""
    program = [sys.executable, "-c", PROGRAM]
    assert subprocess.run(program, capture_output=True, timeout=60).returncode == 3
