"""The thread that reads the machine."""

from __future__ import annotations

import os
import resource
import socket
import threading
import time
from pathlib import Path

from otel_torchdist.node.machine.gpus import GpuProcess
from otel_torchdist.node.machine.reader import MachineReader, MachineReading, WatchedRank
from otel_torchdist.node.machine.watch import MachineWatch
from otel_torchdist.tape.identity import identify
from tests.support.waiting import until


class BlockedReader(MachineReader):
    """A reader for which a device does not answer, as some files in `/sys` can."""

    def __init__(self) -> None:
        super().__init__()
        self.is_reached = threading.Event()
        self.goes_on = threading.Event()

    def read(self, ranks: object, now_ns: int) -> MachineReading:
        """Wait for the device."""
        self.is_reached.set()
        self.goes_on.wait(60)
        return MachineReading("late")


def test_real_machine() -> None:
    """This machine, and this process as a rank of it, are read as soon as there is a rank, and not at the next turn."""
    watch = MachineWatch(gpus=GpuProcess(), interval_s=60.0).start()
    until(lambda: watch.reading)
    identity = identify(0, 0, 1, 64)
    watch.update([WatchedRank(Path("/nonexistent/one.tape"), identity, os.geteuid())])
    reading = until(lambda: watch.reading if watch.reading is not None and watch.reading.gpus else None, 5.0)
    watch.stop()
    assert (reading.host, reading.gpus) == (socket.gethostname(), {identity.nonce: ""})
    assert watch.symptoms_of(identity.nonce) == reading.symptoms_of(identity.nonce)


def test_device_that_does_not_answer() -> None:
    """The thread that asks for the reading goes on, and so does the end."""
    reader = BlockedReader()
    watch = MachineWatch(reader, GpuProcess()).start()
    assert reader.is_reached.wait(10)
    began = time.monotonic()
    watch.update([])
    assert (watch.reading, watch.symptoms_of(1)) == (None, ())
    watch.stop()
    assert time.monotonic() - began < 3.0
    reader.goes_on.set()
    until(lambda: not any(one.name == "torchdist-machine" for one in threading.enumerate()))


def test_lowered_limit() -> None:
    """A process whose limit on descriptors was lowered goes on reading as soon as it is raised again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    watch = MachineWatch(interval_s=0.1).start()
    try:
        until(lambda: watch.reading)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        time.sleep(0.3)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    before = watch.reading
    until(lambda: watch.reading is not before, 10.0)
    watch.stop()
