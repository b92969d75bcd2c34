"""Starts and stops the stack without containers: `python -m deploy.native up` and `down` (`make up`, `make down`)."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from rich.console import Console

from deploy.native import keeper
from deploy.native.http_json import ApiError
from deploy.native.jaeger_api import JaegerApi
from deploy.native.jaeger_spans import JaegerSpan
from deploy.native.live_page import live_page
from deploy.native.ports import PortError, Ports, ports_from
from deploy.native.program import ProgramError
from deploy.native.prometheus_api import Alert, AlertmanagerApi
from deploy.native.stack import addresses_of
from deploy.native.timeline import timeline
from deploy.native.training import SERVICE
from otel_torchdist.config import Config
from otel_torchdist.errors import TapeError
from otel_torchdist.node.job.directory import base_directory

PATIENCE_S: Final = 120.0
_Answer = TypeVar("_Answer")


def up(home: Path) -> int:
    """Start the stack and the demo's job, and show the job's stall as the servers report it."""
    console, began = Console(highlight=False), time.monotonic()

    def say(text: str) -> None:
        console.print(f"{time.monotonic() - began:6.1f} s  {text}", soft_wrap=True)

    ports = ports_from(os.environ)
    keeper.start(home, ports)
    say("Jaeger, Collector, Prometheus and Alertmanager are up; four ranks begin to train.")
    addresses = addresses_of(ports)
    jaeger, alertmanager = JaegerApi(addresses.jaeger), AlertmanagerApi(addresses.alertmanager)
    step = _await("Jaeger shows no stall", lambda: _stalled_step(jaeger))
    say(f"Jaeger shows operations that have not ended: {addresses.jaeger}/trace/{step[0].trace_id}")
    run = next(str(span.tags["torchdist.run"]) for span in step if not span.parent_id)
    page = live_page(_tapes(), run)
    if page is not None:
        say(f"The live page shows the ranks, and the line that the missing rank is in: {page}")
    alert = _await("no alert fires", lambda: _stall_alert(alertmanager, run))
    say(f"The alert fires. {alert.annotations['summary']}")
    say(f"It links to the trace of the stall: {alert.annotations['trace']}")
    say(f"What the verdict means, and what to do now: {alert.annotations['runbook_url']}")
    stall_id = alert.annotations["trace"].rpartition("/")[2]
    for title, trace_id in (("The step", step[0].trace_id), ("The stall", stall_id)):
        console.print()
        console.print(timeline(jaeger.trace(trace_id), f"{title}, trace {trace_id}", console.width))
    _print_addresses(console, ports, home)
    return 0


def down(home: Path) -> int:
    """Stop the stack and the job."""
    print("The stack is down." if keeper.stop(home) else "It was not running.")
    return 0


def keep(home: Path) -> int:
    """Run the background process that keeps the stack up."""
    keeper.keep(home, _tapes())
    return 0


def _tapes() -> Path:
    return base_directory(Config.from_environment().tape_dir, on_disk=False)


def _stalled_step(jaeger: JaegerApi) -> list[JaegerSpan] | None:
    """Return the trace of the step in which ranks hang; not the first step, in which a rank may only have been late."""
    for trace in jaeger.find(SERVICE, {"torchdist.stalled": "true"}):
        if any(span.name == "all_reduce (in progress)" for span in trace):
            return trace
    return None


def _stall_alert(alertmanager: AlertmanagerApi, run: str) -> Alert | None:
    """Return the alert of this run: Prometheus scrapes all jobs of the user."""
    alerts = (alert for alert in alertmanager.alerts() if alert.name == "TorchdistStalled" and alert.is_active)
    return next((alert for alert in alerts if alert.labels["run"] == run), None)


def _await(complaint: str, query: Callable[[], _Answer | None]) -> _Answer:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(ApiError):  # may succeed next time
            answer = query()
            if answer is not None:
                return answer
        time.sleep(0.5)
    raise ProgramError(f"{complaint} after {PATIENCE_S:g} s")


def _print_addresses(console: Console, ports: Ports, home: Path) -> None:
    addresses = addresses_of(ports)
    console.print(
        f"""
The storage of rank 2 answers again after two minutes. Then the alert ends, and the training continues to its end.

  Jaeger        {addresses.jaeger}  (built from Go modules, it has only its API, no pages)
  Prometheus    {addresses.prometheus}
  Alertmanager  {addresses.alertmanager}  (only its API, too: {addresses.alertmanager}/api/v2/alerts)
  OTLP          {addresses.otlp} (gRPC), {addresses.otlp_http} (HTTP)
  logs          {home}

To run your own job: OTEL_PYTHON_TORCHDIST_ENABLED=true OTEL_EXPORTER_OTLP_ENDPOINT={addresses.otlp} torchrun …
To stop everything: `make down`""",
        soft_wrap=True,
    )


def main() -> int:
    """Run the command line; an error is printed as one line."""
    actions: dict[str, Callable[[Path], int]] = {"up": up, "down": down, "keep": keep}
    parser = argparse.ArgumentParser(prog="deploy.native", description=__doc__)
    parser.add_argument("action", choices=actions)
    try:
        return actions[parser.parse_args().action](keeper.running_home())
    except (ProgramError, PortError, ApiError, TapeError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
