"""The stack without containers: `python -m deploy.native up` and `down`; `make up` and `make down` call them."""

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
from deploy.native.jaeger_api import JaegerApi, JaegerSpan
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
_Found = TypeVar("_Found")


def up(home: Path) -> int:
    """Start everything, and show the stall of the demo's job as the servers report it."""
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
        say(f"The live page shows the ranks, and where the one that is missing is: {page}")
    alert = _await("no alert fires", lambda: _stall_alert(alertmanager, run))
    say(f"The alert fires. {alert.annotations['summary']}")
    say(f"It links to the trace of the stall: {alert.annotations['trace']}")
    stall_id = alert.annotations["trace"].rpartition("/")[2]
    for title, trace_id in (("The step", step[0].trace_id), ("The stall", stall_id)):
        console.print()
        console.print(timeline(jaeger.trace(trace_id), f"{title}, trace {trace_id}", console.width))
    _tell_where(console, ports, home)
    return 0


def down(home: Path) -> int:
    """End everything."""
    print("The stack is down." if keeper.stop(home) else "It was not running.")
    return 0


def keep(home: Path) -> int:
    """Run the background process."""
    keeper.keep(home, _tapes())
    return 0


def _tapes() -> Path:
    return base_directory(Config.from_environment().tape_dir, on_disk=False)


def _stalled_step(jaeger: JaegerApi) -> list[JaegerSpan] | None:
    """The trace of the step in which ranks hang; not that of the start, in which one may have been late."""
    for trace in jaeger.find(SERVICE, {"torchdist.stalled": "true"}):
        if any(span.name == "all_reduce (in progress)" for span in trace):
            return trace
    return None


def _stall_alert(alertmanager: AlertmanagerApi, run: str) -> Alert | None:
    """The alert of this run: Prometheus sees all jobs of the user."""
    alerts = (one for one in alertmanager.alerts() if one.name == "TorchdistStalled" and one.is_active)
    return next((one for one in alerts if one.labels["run"] == run), None)


def _await(complaint: str, look: Callable[[], _Found | None]) -> _Found:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(ApiError):  # may succeed the next time
            found = look()
            if found is not None:
                return found
        time.sleep(0.5)
    raise ProgramError(f"{complaint} after {PATIENCE_S:g} s")


def _tell_where(console: Console, ports: Ports, home: Path) -> None:
    addresses = addresses_of(ports)
    console.print(
        f"""
The storage of rank 2 answers again after two minutes; then the alert is over, and the training goes on to its end.

  Jaeger        {addresses.jaeger}  (as built from Go modules it has no pages, only its API)
  Prometheus    {addresses.prometheus}
  Alertmanager  {addresses.alertmanager}
  OTLP          {addresses.otlp} (gRPC), {addresses.otlp_http} (HTTP)
  logs          {home}

A job of your own: OTEL_PYTHON_TORCHDIST_ENABLED=true OTEL_EXPORTER_OTLP_ENDPOINT={addresses.otlp} torchrun …
`make down` ends it all.""",
        soft_wrap=True,
    )


def main() -> int:
    """Run the command line; errors are one line."""
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
