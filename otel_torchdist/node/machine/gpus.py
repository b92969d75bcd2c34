"""Runs the child process that reads the GPUs, and kills it if it hangs."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import subprocess
import sys
from typing import Final

import msgspec

from otel_torchdist.node.machine.nvml import GpuReading

INTERVAL_S: Final = 5.0
SILENT_S: Final = 30.0
"""Seconds without output after which the child process is considered hung in the driver."""
RETRY_S: Final = 60.0
LONGEST_RETRY_S: Final = 3_600.0
STOP_S: Final = 0.5
_MAX_LINE: Final = 1 << 20
_BOOT: Final = "import sys; sys.path[:] = sys.argv[2:]; from otel_torchdist.node.machine.nvml import main; main()"

_logger = logging.getLogger("otel_torchdist")
_decoder: Final = msgspec.json.Decoder(GpuReading)


class GpuProcess:
    """The child process that reads the GPUs; at most one exists at a time. Not thread-safe.

    Attributes:
        silent_s: Seconds without a reading after which the process is killed.
    """

    def __init__(self, interval_s: float = INTERVAL_S, silent_s: float = SILENT_S, retry_s: float = RETRY_S) -> None:
        """Prepare, without starting a process.

        Args:
            interval_s: Seconds between two readings.
            silent_s: Seconds without a reading after which the process is killed.
            retry_s: Seconds until the next process is started; doubled each time.
        """
        self._interval_s = interval_s
        self.silent_s = silent_s
        self._retry_s = retry_s
        self._is_wanted = importlib.util.find_spec("pynvml") is not None
        self._process: subprocess.Popen[bytes] | None = None
        self._last_reading_at = 0.0
        self._start_at = 0.0
        self._buffer = b""
        self._is_given_up = False
        if not self._is_wanted:
            _logger.debug("GPUs are not read: there is no module pynvml (pip install 'otel-torchdist[nvml]')")

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        """The process; None if there is none."""
        return self._process

    @property
    def descriptor(self) -> int:
        """Descriptor that becomes readable with a reading; -1 if there is no process, or it does not answer."""
        process = self._process
        return process.stdout.fileno() if process is not None and process.stdout and not self._is_given_up else -1

    def check(self, now_s: float) -> list[GpuReading]:
        """Start or kill the process if that is due, and return its readings since the last call.

        Args:
            now_s: Monotonic time in seconds.
        """
        if self._process is None:
            if self._is_wanted and now_s >= self._start_at:
                self._start(now_s)
            return []
        if self._is_given_up:
            if self._process.poll() is not None:  # a process stuck in the kernel may never end
                self._forget(now_s)
            return []
        readings = self._read(now_s)
        if self._is_given_up:
            self._process.kill()
        elif now_s - self._last_reading_at > self.silent_s:
            _logger.info("GPUs are not read for now: NVML has not answered for %.0f s", now_s - self._last_reading_at)
            self._process.kill()
            self._is_given_up = True
        return readings

    def stop(self) -> None:
        """Kill the process; wait for its end for at most `STOP_S`, because it may be stuck in the kernel."""
        self._is_wanted = False
        if self._process is None:
            return
        self._is_given_up = True
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
            self._forget(0.0)

    def _start(self, now_s: float) -> None:
        command = [sys.executable, "-c", _BOOT, str(self._interval_s), *sys.path]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except OSError as error:
            _logger.debug("GPUs are not read: %s", error)
            self._schedule_start(now_s)
            return
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._last_reading_at, self._buffer = now_s, b""

    def _forget(self, now_s: float) -> None:
        """Clean up after the process has ended, and schedule the next one."""
        assert self._process is not None and self._process.stdout is not None
        self._process.stdout.close()
        self._process, self._is_given_up = None, False
        self._schedule_start(now_s)

    def _schedule_start(self, now_s: float) -> None:
        self._start_at = now_s + self._retry_s
        self._retry_s = min(2 * self._retry_s, LONGEST_RETRY_S)

    def _read(self, now_s: float) -> list[GpuReading]:
        *lines, self._buffer = (self._buffer + self._available()).split(b"\n")
        self._buffer = self._buffer[:_MAX_LINE]
        readings: list[GpuReading] = []
        for line in lines:
            try:
                reading = _decoder.decode(line)
            except msgspec.MsgspecError as error:
                _logger.debug("a reading of GPUs is damaged: %s", error)
                continue
            if reading.problem:
                _logger.debug("GPUs are not read: NVML: %s", reading.problem)
                self._is_wanted = False
                return []
            self._last_reading_at = now_s
            readings.append(reading)
        return readings

    def _available(self) -> bytes:
        try:
            content = os.read(self.descriptor, _MAX_LINE)
        except OSError:  # no output yet
            return b""
        if not content:  # the process has ended, or is about to
            self._is_given_up = True
        return content
