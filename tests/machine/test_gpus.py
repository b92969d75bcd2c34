"""GPUs through NVML, in a process of its own: what is read, and what a library that misbehaves can do (nothing)."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_torchdist.machine.gpu_log import GpuLog
from otel_torchdist.machine.gpus import GpuProcess
from otel_torchdist.machine.model import Gpu, MachineReading
from otel_torchdist.machine.nvml import GpuReading, Xid
from otel_torchdist.machine.reader import MachineReader
from otel_torchdist.machine.watch import MachineWatch
from otel_torchdist.model.symptoms import SymptomKind
from tests.machine.fake_nvml.pynvml import UUIDS
from tests.support.waiting import until

FIRST, SECOND = UUIDS
GIB = 1 << 30
INTERVAL_S = 0.1


@pytest.fixture
def gpus(request: pytest.FixtureRequest) -> Iterator[GpuProcess]:
    """Reads the GPUs of the library, at an interval that the test may give."""
    gpus = GpuProcess(getattr(request, "param", INTERVAL_S), retry_s=0.2)
    yield gpus
    if gpus.process is not None:  # `stop` does not wait long for it
        gpus.process.communicate(timeout=10)


@pytest.fixture
def watching(fake_nvml: pytest.MonkeyPatch, gpus: GpuProcess, tmp_path: Path) -> Iterator[MachineWatch]:
    """A watch over a machine with these GPUs; nothing else is there to be read."""
    watch = MachineWatch(MachineReader(tmp_path), gpus, 0.5)
    yield watch
    watch.stop()


def seen(watch: MachineWatch) -> MachineReading:
    """The newest reading, once it has GPUs."""
    return until(lambda: watch.reading if watch.reading is not None and watch.reading.gpus else None)


def test_everything_of_two_gpus(watching: MachineWatch) -> None:
    """Memory, power, the reasons for which clocks are held down (not that they idle), ECC and NVLink."""
    first, second = seen(watching.start()).gpus
    assert (first.uuid, first.model, first.is_lost) == (FIRST, "NVIDIA H100", False)
    assert (first.memory_used, first.memory_total, second.memory_used) == (70 * GIB, 80 * GIB, 71 * GIB)
    assert (first.power_w, first.throttled, second.throttled) == (612.5, ("hardware_thermal",), ())
    assert (first.ecc_corrected, first.nvlink_transmitted, first.nvlink_received) == (7, 138_000 << 10, 139_000 << 10)
    kinds = until(lambda: {one.kind for one in seen(watching).symptoms_of_gpus.get(SECOND, ())})
    assert kinds == {SymptomKind.ECC}  # the library counts one more with each reading


@pytest.mark.parametrize("gpus", [60.0], indirect=True)
def test_errors_of_the_driver(watching: MachineWatch, fake_nvml: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Xids are counted by GPU and number, and come long before the next reading would be due."""
    fake_nvml.setenv("FAKE_NVML_XID", str(tmp_path / "xid"))
    seen(watching.start())
    before_ns = time.monotonic_ns()
    (tmp_path / "xid.new").write_text("79 79 31")
    (tmp_path / "xid.new").rename(tmp_path / "xid")
    until(lambda: sum(seen(watching).xids.values()) == 3, 10.0)
    assert seen(watching).xids == {(FIRST, 79): 2, (FIRST, 31): 1}
    [xid] = [one for one in seen(watching).symptoms_of_gpus[FIRST] if one.kind is SymptomKind.XID]
    assert xid.value == 31
    assert before_ns < xid.at_ns < time.monotonic_ns()


def test_gpu_that_is_lost(watching: MachineWatch, gpus: GpuProcess, fake_nvml: pytest.MonkeyPatch) -> None:
    """The others are still read; and that every wait for errors fails at once does not make the process spin."""
    fake_nvml.setenv("FAKE_NVML", "lost")
    first, second = seen(watching.start()).gpus
    assert (first.is_lost, first.memory_used) == (False, 70 * GIB)
    assert second == Gpu(SECOND, "NVIDIA H100", is_lost=True)
    assert SymptomKind.GPU_LOST in {one.kind for one in seen(watching).symptoms_of_gpus[SECOND]}
    assert gpus.process is not None
    [before_s, after_s] = [_processor_s(gpus.process.pid, pause_s) for pause_s in (0.0, 0.5)]
    assert after_s - before_s < 0.25


def _processor_s(pid: int, pause_s: float) -> float:
    time.sleep(pause_s)
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_old_driver(watching: MachineWatch, fake_nvml: pytest.MonkeyPatch) -> None:
    """What a driver or version of the module does not offer is left out, and the rest is read."""
    fake_nvml.setenv("FAKE_NVML", "old")
    first, _ = seen(watching.start()).gpus
    assert (first.uuid, first.throttled, first.memory_used) == (FIRST, ("hardware_thermal",), 70 * GIB)
    assert (first.power_w, first.ecc_corrected, first.nvlink_received) == (None, None, None)


def test_library_that_hangs(
    watching: MachineWatch, gpus: GpuProcess, fake_nvml: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The machine is still read, GPUs are not shown any more, and there is one process at a time, then a new one."""
    caplog.set_level(logging.INFO, "otel_torchdist")
    fake_nvml.setenv("FAKE_NVML", "hangs")
    seen(watching.start())
    stuck, usual_s, gpus.silent_s = gpus.process, gpus.silent_s, 1.0
    until(lambda: watching.reading is not None and not watching.reading.gpus)
    gpus.silent_s = usual_s
    assert stuck is not None and stuck.wait(10) == -9
    fake_nvml.setenv("FAKE_NVML", "")
    again = until(lambda: gpus.process if gpus.process is not stuck else None)
    seen(watching)
    assert again.poll() is None
    [message] = [one.message for one in caplog.records]
    assert re.fullmatch("GPUs are not read for now: NVML has not answered for [1-5] s", message)


def test_end_while_the_library_hangs(watching: MachineWatch, gpus: GpuProcess, fake_nvml: pytest.MonkeyPatch) -> None:
    """The agent ends at once, and nothing of it stays behind."""
    fake_nvml.setenv("FAKE_NVML", "hangs")
    seen(watching.start())
    time.sleep(3 * INTERVAL_S)
    stuck = gpus.process
    began = time.monotonic()
    watching.stop()
    assert time.monotonic() - began < 5.0
    assert stuck is not None and stuck.wait(10) == -9


def test_library_that_crashes(watching: MachineWatch, gpus: GpuProcess, fake_nvml: pytest.MonkeyPatch) -> None:
    """It takes its own process along, which is started again."""
    fake_nvml.setenv("FAKE_NVML", "crash")
    seen(watching.start())
    dead = gpus.process
    until(lambda: gpus.process not in (None, dead))


@pytest.mark.parametrize("mode", ["absent", "no_driver"])
def test_nothing_to_read(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    """Without the module, or without a driver, there is one line for debugging, and no second attempt."""
    caplog.set_level(logging.DEBUG, "otel_torchdist")
    if mode == "no_driver":
        request.getfixturevalue("fake_nvml")
        monkeypatch.setenv("FAKE_NVML", "no_driver")
    else:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    gpus = GpuProcess(INTERVAL_S, retry_s=0.0)
    until(lambda: gpus.check(time.monotonic()) == [] and caplog.records, 10.0)
    until(lambda: gpus.check(time.monotonic()) == [] and gpus.is_silent, 10.0)
    time.sleep(0.1)
    assert gpus.check(time.monotonic()) == []
    assert gpus.is_silent
    reason = "there is no module pynvml (pip install 'otel-torchdist[nvml]')"
    reason = "NVML: NVML Shared Library Not Found" if mode == "no_driver" else reason
    assert [(one.levelname, one.message) for one in caplog.records] == [("DEBUG", f"GPUs are not read: {reason}")]
    gpus.stop()


def test_counters_of_a_driver_that_was_loaded_again() -> None:
    """Totals do not fall, and only uncorrected errors that come while somebody looks are a symptom."""
    log = GpuLog()
    for count in (5, 5):
        log.take(GpuReading((Gpu("GPU-1", ecc_corrected=count, ecc_uncorrected=count),)), 1)
    assert log.symptoms(1) == {}
    log.take(GpuReading((Gpu("GPU-1", ecc_corrected=0, ecc_uncorrected=2),)), 2)
    assert (log.gpus[0].ecc_corrected, log.gpus[0].ecc_uncorrected) == (5, 7)
    [symptom] = log.symptoms(2)["GPU-1"]
    assert (symptom.kind, symptom.value) == (SymptomKind.ECC, 2)


def test_bounded_errors() -> None:
    """A driver that reports ever new numbers does not make ever new series."""
    log = GpuLog()
    log.take(GpuReading((), tuple(Xid("GPU-1", number, 1) for number in range(1000))), 1)
    assert len(log.xids) == 256
