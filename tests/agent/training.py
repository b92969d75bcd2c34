"""A training job under torchrun, its agent, and what both leave behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
import urllib.request
from http.client import HTTPException
from pathlib import Path

from tests.support.commands.running import is_agent, processes_of
from tests.support.launch.torchrun import Torchrun
from tests.support.launch.warm_python import WarmPython
from tests.support.receivers.otlp_receiver import OtlpReceiver
from tests.support.waiting import until

WORKERS = Path(__file__).parent / "workers"
RANKS = 2


class Training:
    """Two ranks under torchrun that take steps as long as the gate exists.

    Attributes:
        base: Base directory of its tapes.
        receiver: Receives the spans.
        torchrun: torchrun.
    """

    def __init__(
        self,
        python: WarmPython,
        base: Path,
        receiver: OtlpReceiver,
        *,
        pause_s: float = 0.02,
        environ: dict[str, str] | None = None,
        folder: Path = WORKERS,
    ) -> None:
        self.base = base
        self.receiver = receiver
        self._gate = base.parent / f"{base.name}.gate"
        self._gate.touch()
        script = [folder / "steps.py", self._gate, str(pause_s)]
        command = ["--standalone", f"--nproc-per-node={RANKS}", *script]
        variables = environment(base, receiver) | (environ or {})
        self.torchrun = Torchrun(python, base.parent / f"{base.name}.outputs", command, variables)

    @property
    def log(self) -> str:
        """All output of torchrun and its ranks."""
        return self.torchrun.log

    def lines(self, word: str) -> list[float]:
        """The numbers after a word that ranks print."""
        return [float(number) for number in re.findall(rf"^{word} ([\d.]+)$", self.log, re.MULTILINE)]

    def joined_at(self) -> float:
        """Monotonic seconds at which the last rank had its process group."""
        until(lambda: len(self.lines("joined")) == RANKS, 120.0, self.log)
        return max(self.lines("joined"))

    def served_at(self) -> float:
        """Monotonic seconds at which the agent has published where it serves `/metrics`."""
        [target] = (self.base / "prometheus").glob("*.json")
        return time.monotonic() - (time.time() - target.stat().st_mtime)

    def stall(self) -> None:
        """Have rank 0 come late to its next broadcast, from now on."""
        self._gate.write_text("late")

    def end(self) -> int:
        """End the job; returns how many steps each rank has taken."""
        self._gate.unlink()
        assert self.torchrun.wait(60) == 0, self.log
        issued = self.lines("issued")
        assert issued == [issued[0]] * RANKS
        return int(issued[0])

    def ranks(self) -> list[int]:
        """Process ids of its ranks."""
        return [pid for pid in processes_of(self.base) if b"steps.py" in _command_of(pid) and pid != self.torchrun.pid]

    def agents(self) -> list[int]:
        """Process ids of its agents."""
        return [pid for pid in processes_of(self.base) if is_agent(pid)]

    def kill(self) -> None:
        """Kill torchrun and all ranks, torchrun first so that it does not end the ranks cleanly."""
        for pid in [self.torchrun.pid, *self.ranks()]:
            os.kill(pid, signal.SIGKILL)
        self.torchrun.wait(60)

    def agent(self) -> int:
        """Process id of the one agent: each rank starts one, and all but one of these end at once."""
        [agent] = until(lambda: agents if len(agents := self.agents()) == 1 else None)
        return agent

    def target(self) -> str:
        """Host and port of `/metrics`; see `target_in`."""
        return target_in(self.base)

    def scrape(self) -> str:
        """A page of `/metrics`; see `page_of`."""
        return page_of(self.base)

    def scraped_to_the_end(self) -> bool:
        """Scrape once more, as Prometheus does until the agent is gone; returns whether it is."""
        self.scrape()
        return not self.agents()

    def close(self, but: int = 0) -> None:
        """Kill all leftover processes except one."""
        for pid in {*processes_of(self.base)} - {but}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.torchrun.wait(60)
        until(lambda: not {*processes_of(self.base)} - {but})


def target_in(base: Path) -> str:
    """Host and port of `/metrics` as published for scrapers; '' if not published."""
    for path in (base / "prometheus").glob("*.json"):
        with contextlib.suppress(OSError):
            return json.loads(path.read_text())[0]["targets"][0]
    return ""


def page_of(base: Path) -> str:
    """A page of `/metrics`; '' if nothing answers."""
    url = f"http://{target_in(base)}/metrics"
    with contextlib.suppress(OSError, HTTPException), urllib.request.urlopen(url, timeout=5) as page:
        return page.read().decode()
    return ""


def environment(base: Path, receiver: OtlpReceiver) -> dict[str, str]:
    """The environment of a job: switched on, with no other setting of ours."""
    return {
        **os.environ,
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "OTEL_PYTHON_TORCHDIST_ENABLED": "true",
        "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(base),
        "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "2000",
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": receiver.protocol,
        "OTEL_EXPORTER_PROMETHEUS_HOST": "127.0.0.1",
        "OTEL_EXPORTER_PROMETHEUS_PORT": "0",
    }


def _argv(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _command_of(pid: int) -> bytes:
    return b" ".join(_argv(pid))
