"""Runs the program under torchrun, with an agent and a receiver of spans, and keeps all that they show of it."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Final, TypeAlias

import pytest
from prometheus_client.parser import text_string_to_metric_families

from otel_torchdist.telemetry.metrics.definitions import NUMBER_METRICS
from otel_torchdist.telemetry.metrics.definitions.operations import HISTOGRAM_METRICS
from tests.agent.training import environment, page_of, target_in
from tests.figures.witness import Witness, testify
from tests.support.commands.running import kill_processes_of, processes_of, stacks_of
from tests.support.launch.torchrun import Torchrun
from tests.support.launch.warm_python import WarmPython
from tests.support.receivers.otlp_receiver import OtlpReceiver, ReceivedSpan
from tests.support.waiting import until

ORDINARY: Final = Path(__file__).parent / "workers" / "ordinary.py"
RANKS: Final = 2
LINGER_S: Final = 60.0
SETTLES_S: Final = 60.0
"""For how long the agent may look for the first critical path, which it does in a process of low priority."""

Series: TypeAlias = dict[tuple[str, ...], float]

_LABELS: Final = {metric.name: metric.labels for metric in (*NUMBER_METRICS, *HISTOGRAM_METRICS)}


class Page:
    """A page of `/metrics` with one run on it.

    Attributes:
        at: When it was asked for, by the wall clock.
        names: The families that have series.
    """

    def __init__(self, text: str) -> None:
        self.at = time.time()
        self._samples: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self._samples.setdefault(sample.name, []).append((sample.labels, sample.value))
        ours = {f"{name}{suffix}": name for name in _LABELS for suffix in ("", "_bucket", "_count", "_sum")}
        self.names = {ours.get(name, name) for name in self._samples}
        info = self._samples.get("torchdist_group_info", [])
        self._groups = {labels["group"]: labels["description"] for labels, _ in info}

    def series(self, name: str, suffix: str = "") -> Series:
        """All series of a family, by their labels without the run, groups by their descriptions."""
        found: Series = {}
        for labels, value in self._samples.get(f"{name}{suffix}", []):
            described = {**labels, "group": self._groups.get(labels.get("group", ""), "")}
            key = tuple(described[label] for label in (*_LABELS[name], *_bound(labels)) if label != "run")
            assert key not in found, (name, key)
            found[key] = value
        return found


def _bound(labels: Mapping[str, str]) -> tuple[str, ...]:
    return ("le",) if "le" in labels else ()


@dataclass(frozen=True)
class Run:
    """A run of the program, and what is shown of it.

    Attributes:
        kernel: What has recorded it.
        saves: Whether it has saved and loaded checkpoints, and marked its steps.
        base: Where its tapes are.
        archive: Its archive.
        witnesses: By rank, what was counted without us.
        live: The page while its ranks were alive, at their last call.
        final: The page after they have ended.
        spans: All that was exported.
    """

    kernel: str
    saves: bool
    base: Path
    archive: Path
    witnesses: list[Witness]
    live: Page
    final: Page
    spans: list[ReceivedSpan]


@contextlib.contextmanager
def running(python: WarmPython, folder: Path, kernel: str, saves: bool, environ: Mapping[str, str]) -> Iterator[Run]:
    """Run the program to its end; its tapes and archive are kept until the block ends.

    Args:
        python: From which torchrun is forked.
        folder: Where all of its files go, in memory.
        kernel: What records it.
        saves: Whether it saves and loads checkpoints, and marks its steps.
        environ: What its processes need for that.
    """
    base, gate, saved, archive = (folder / name for name in ("tapes", "gate", "saved", "archive"))
    gate.touch()
    saved.mkdir()
    options = ["--checkpoints", saved] if saves else []
    with OtlpReceiver() as receiver:
        variables = {
            **environment(base, receiver),
            "TORCH_FR_BUFFER_SIZE": "2000",  # 0 for gloo in torch 2.8
            "OTEL_PYTHON_TORCHDIST_ARCHIVE": str(archive),
            "OTEL_PYTHON_TORCHDIST_AGENT_LINGER": str(round(LINGER_S * 1000)),
            "OTEL_PYTHON_TORCHDIST_SPAN_BUDGET": "1000000",
            "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "20000",
            **environ,
        }
        command = ["--standalone", f"--nproc-per-node={RANKS}", ORDINARY, gate, *options]
        torchrun = Torchrun(python, folder / "outputs", command, variables)
        try:
            witnesses = _witnesses(torchrun, base)
            live = _settled(base, witnesses)
            target = target_in(base)
            gate.unlink()
            done = torchrun.end()
            assert done.code == 0, done.err
            final = until(lambda: _ended(target))
            until(lambda: _is_over(base, target), LINGER_S)
            yield Run(kernel, saves, base, archive, witnesses, live, final, receiver.spans())
        finally:
            gate.unlink(missing_ok=True)
            kill_processes_of(base)
            torchrun.close()


def _witnesses(torchrun: Torchrun, base: Path) -> list[Witness]:
    """Return the ranks' reports; they wait for the gate then."""

    def printed() -> list[str] | None:
        lines = [line for line in torchrun.log.splitlines() if line.startswith("{") and line.endswith("}")]
        assert torchrun.poll() is None, torchrun.log
        return lines if len(lines) == RANKS else None

    lines = until(printed, 120.0, lambda: torchrun.log + stacks_of(processes_of(base)))
    reports = [json.loads(line) for line in lines]
    if not all(report["recorded"] for report in reports):
        pytest.skip("gloo of this torch keeps no flight record, which has the sizes of torch's own collectives")
    return sorted(map(testify, reports), key=lambda witness: witness.rank)


def _settled(base: Path, witnesses: list[Witness]) -> Page:
    """The page when the agent has read all, looked at the machine and at the critical path; or after some time."""
    issued = sum(len(witness.calls) for witness in witnesses)
    ends = time.monotonic() + SETTLES_S
    while True:
        page = Page(page_of(base))
        counted = sum(page.series("torchdist_operations_total").values()) >= issued
        if counted and {"torchdist_rank_info", "torchdist_critical_path_seconds"} <= page.names:
            return page
        if time.monotonic() > ends:
            return page
        time.sleep(0.1)


def _is_over(base: Path, target: str) -> bool:
    """Whether the agent has exited, which it does once it has been asked for the page after its last look at ranks."""
    with contextlib.suppress(OSError, HTTPException), urllib.request.urlopen(f"http://{target}/metrics") as answer:
        answer.read()
    return not processes_of(base)


def _ended(target: str) -> Page | None:
    """The page once it shows that the ranks are gone."""
    with contextlib.suppress(OSError, HTTPException), urllib.request.urlopen(f"http://{target}/metrics") as answer:
        page = Page(answer.read().decode())
        return None if "torchdist_up" in page.names else page
    return None
