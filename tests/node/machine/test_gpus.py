"""GPUs through NVML, in a process of its own: what is read, and what a library that misbehaves can do (nothing)."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_torchdist.model.rank_state.symptoms import Symptom, SymptomKind
from otel_torchdist.node.machine.gpus import GpuProcess
from otel_torchdist.node.machine.nvml import Gpu, GpuReading, Xid
from otel_torchdist.node.machine.reader import MachineReader
from otel_torchdist.node.machine.watch import GpuLog, MachineWatch
from tests.node.machine.fake_nvml.pynvml import UUIDS
from tests.support.waiting import until

FIRST, SECOND = UUIDS
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


def seen(watch: MachineWatch, uuid: str, kind: SymptomKind) -> Symptom:
    """The symptom of a GPU, once the watch shows it."""

    def found() -> Symptom | None:
        shown = watch.reading.symptoms_of_gpus.get(uuid, ()) if watch.reading is not None else ()
        return next((one for one in shown if one.kind is kind), None)

    return until(found)


def test_two_gpus(watching: MachineWatch) -> None:
    """The reasons for which clocks are held down (not that they idle), and memory errors that are not corrected."""
    assert seen(watching.start(), FIRST, SymptomKind.THROTTLED).detail == "hardware_thermal"
    seen(watching, SECOND, SymptomKind.ECC)  # the library counts one more with each reading
    assert watching.reading is not None
    assert {one.kind for one in watching.reading.symptoms_of_gpus[SECOND]} == {SymptomKind.ECC}


@pytest.mark.parametrize("gpus", [60.0], indirect=True)
def test_errors_of_the_driver(watching: MachineWatch, fake_nvml: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The newest Xid of a GPU comes long before the next reading would be due."""
    fake_nvml.setenv("FAKE_NVML_XID", str(tmp_path / "xid"))
    seen(watching.start(), FIRST, SymptomKind.THROTTLED)
    before_ns = time.monotonic_ns()
    (tmp_path / "xid.new").write_text("79 79 31")
    (tmp_path / "xid.new").rename(tmp_path / "xid")
    until(lambda: seen(watching, FIRST, SymptomKind.XID).value == 31, 10.0)
    assert before_ns < seen(watching, FIRST, SymptomKind.XID).at_ns < time.monotonic_ns()
    assert watching.reading is not None
    assert SymptomKind.XID not in {one.kind for one in watching.reading.symptoms_of_gpus.get(SECOND, ())}


def test_gpu_that_is_lost(watching: MachineWatch, gpus: GpuProcess, fake_nvml: pytest.MonkeyPatch) -> None:
    """The others are still read; and that every wait for errors fails at once does not make the process spin."""
    fake_nvml.setenv("FAKE_NVML", "lost")
    seen(watching.start(), SECOND, SymptomKind.GPU_LOST)
    seen(watching, FIRST, SymptomKind.THROTTLED)
    assert watching.reading is not None
    assert [one.kind for one in watching.reading.symptoms_of_gpus[SECOND]] == [SymptomKind.GPU_LOST]
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
    seen(watching.start(), FIRST, SymptomKind.THROTTLED)
    time.sleep(3 * INTERVAL_S)
    assert watching.reading is not None
    assert {one.kind for one in watching.reading.symptoms_of_gpus[FIRST]} == {SymptomKind.THROTTLED}


def test_library_that_hangs(
    watching: MachineWatch, gpus: GpuProcess, fake_nvml: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The machine is still read, and there is one process for the GPUs at a time, then a new one."""
    caplog.set_level(logging.INFO, "otel_torchdist")
    fake_nvml.setenv("FAKE_NVML", "hangs")
    seen(watching.start(), FIRST, SymptomKind.THROTTLED)
    stuck, usual_s, gpus.silent_s = gpus.process, gpus.silent_s, 1.0
    assert stuck is not None and stuck.wait(10) == -9
    gpus.silent_s = usual_s
    before = watching.reading
    until(lambda: watching.reading is not before)
    fake_nvml.setenv("FAKE_NVML", "")
    again = until(lambda: gpus.process if gpus.process is not stuck else None)
    seen(watching, SECOND, SymptomKind.ECC)
    assert again.poll() is None
    [message] = [one.message for one in caplog.records]
    assert re.fullmatch("GPUs are not read for now: NVML has not answered for [1-5] s", message)


def test_end_while_the_library_hangs(watching: MachineWatch, gpus: GpuProcess, fake_nvml: pytest.MonkeyPatch) -> None:
    """The agent ends at once, and nothing of it stays behind."""
    fake_nvml.setenv("FAKE_NVML", "hangs")
    seen(watching.start(), FIRST, SymptomKind.THROTTLED)
    time.sleep(3 * INTERVAL_S)
    stuck = gpus.process
    began = time.monotonic()
    watching.stop()
    assert time.monotonic() - began < 5.0
    assert stuck is not None and stuck.wait(10) == -9


def test_library_that_crashes(watching: MachineWatch, gpus: GpuProcess, fake_nvml: pytest.MonkeyPatch) -> None:
    """It takes its own process along, which is started again."""
    fake_nvml.setenv("FAKE_NVML", "crash")
    seen(watching.start(), FIRST, SymptomKind.THROTTLED)
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
    until(lambda: gpus.check(time.monotonic()) == [] and gpus.process is None, 10.0)
    time.sleep(0.1)
    assert gpus.check(time.monotonic()) == []
    assert gpus.process is None
    reason = "there is no module pynvml (pip install 'otel-torchdist[nvml]')"
    reason = "NVML: NVML Shared Library Not Found" if mode == "no_driver" else reason
    assert [(one.levelname, one.message) for one in caplog.records] == [("DEBUG", f"GPUs are not read: {reason}")]
    gpus.stop()


def test_counters_of_a_driver_that_was_loaded_again() -> None:
    """Only uncorrected errors that come while somebody looks are a symptom, and as many as have come."""
    log = GpuLog()
    for _ in range(2):
        log.take(GpuReading((Gpu("GPU-1", ecc_uncorrected=5),)), 1)
    assert log.symptoms(1) == {}
    log.take(GpuReading((Gpu("GPU-1", ecc_uncorrected=2),)), 2)
    assert log.symptoms(2) == {"GPU-1": (Symptom(SymptomKind.ECC, 2, 2),)}


def test_bounded_errors() -> None:
    """A driver that reports ever new numbers does not make ever new symptoms: the newest one is kept."""
    log = GpuLog()
    log.take(GpuReading((), tuple(Xid("GPU-1", number, 1) for number in range(1000))), 1)
    assert log.symptoms(1) == {"GPU-1": (Symptom(SymptomKind.XID, 1, 999),)}
