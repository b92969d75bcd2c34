"""What is reported of ranks that cannot be ended."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys

import pytest

from otel_torchdist.actions import abort
from otel_torchdist.actions.stalled_run import StalledRun

UNASKED_RANK = """
import dataclasses, sys, time
from pathlib import Path
from otel_torchdist.tape.identity import identify
from otel_torchdist.tape.writer import TapeWriter

identity = identify(int(sys.argv[2]), 0, 2, 64)
if sys.argv[3] == "elsewhere":
    identity = dataclasses.replace(identity, pid_namespace=identity.pid_namespace + 1)
tape = TapeWriter(Path(sys.argv[1]), identity)
print(identity.nonce, flush=True)
time.sleep(60)
"""


def test_abort_reports_ranks_that_it_could_not_end(stall: StalledRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that does not respond is killed, except in another PID namespace: then no end is claimed."""
    monkeypatch.setattr(abort, "ANSWER_S", 0.2)
    command = [sys.executable, "-c", UNASKED_RANK, str(stall.directory)]
    ranks = [
        subprocess.Popen([*command, str(rank), place], stdout=subprocess.PIPE, text=True)
        for rank, place in enumerate(("here", "elsewhere"))
    ]
    try:
        nonces = frozenset(int(rank.stdout.readline()) for rank in ranks if rank.stdout is not None)
        text = abort.abort_ranks(dataclasses.replace(stall, nonces=nonces), lambda: True)
        assert ranks[0].wait(10) == -signal.SIGKILL
        assert ranks[1].poll() is None
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert text.startswith("ended 1 ranks, of which rank 0 had to be killed; rank 1 did not end and cannot be killed")
