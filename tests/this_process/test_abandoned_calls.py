"""A thread of ours that is in torch when Python ends does not end the process with SIGABRT."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import contextlib, datetime, sys, threading, time
from torch.distributed import TCPStore
from otel_torchdist.this_process.abandoned_calls import BACKGROUND_CALLS

class Ending:
    def __del__(self):
        time.sleep(2)

def wait_in_torch():
    with calls, contextlib.suppress(RuntimeError):
        is_inside.set()
        store.get("never")

calls = BACKGROUND_CALLS if sys.argv[1] == "known" else contextlib.nullcontext()
ending = Ending()
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=datetime.timedelta(seconds=1))
is_inside = threading.Event()
threading.Thread(target=wait_in_torch, daemon=True).start()
is_inside.wait()
time.sleep(0.1)
sys.exit(3)
"""
DIES_UNKNOWN = sys.version_info < (3, 14)
"""Python 3.14 holds each thread that comes back, whether or not we know of it."""


@pytest.mark.parametrize(
    ("thread", "exit_code"), [("known", 3), ("unknown", -signal.SIGABRT if DIES_UNKNOWN else 3)], ids=lambda it: str(it)
)
def test_thread_comes_back_from_torch_after_the_end(thread: str, exit_code: int) -> None:
    """The process has its own exit code. Without our knowledge of the thread, C++ ends the process before 3.14."""
    program = [sys.executable, "-c", PROGRAM, thread]
    assert subprocess.run(program, capture_output=True, timeout=60).returncode == exit_code
