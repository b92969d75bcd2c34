"""Makes docs/pictures: the demo in a terminal, its report and its live page, and its stall's traces in Jaeger."""

from __future__ import annotations

import io
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from rich.console import Console, RenderableType

from deploy.native.jaeger_spans import JaegerSpan
from deploy.native.ports import free_ports
from deploy.native.servers import DEPLOY, stack_binaries
from deploy.native.stack import Stack
from deploy.native.timeline import timeline
from deploy.native.training import SERVICE, running, training_command, training_environment
from pictures.browser import draw_report
from pictures.live_page import draw_live_page
from pictures.screen import COLUMNS, photograph

FOLDER: Final = DEPLOY.parent / "docs" / "pictures"
DEADLINE_S: Final = 90.0
# Rich's own template loads its font from a server; a reader's browser has one.
_SVG: Final = """<svg class="{unique_id}" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
 white-space: pre; font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
{styles}
</style>
<defs>{lines}</defs>
<rect fill="#0c0c0c" x="1" y="1" width="{width}" height="{height}" rx="8"/>
<g transform="translate({terminal_x}, {terminal_y})">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g></g></svg>
"""
_Found = TypeVar("_Found")


def main() -> int:
    """Make them all; `report` or `live-page` as an argument makes only that one, which needs no servers."""
    FOLDER.mkdir(exist_ok=True)
    if sys.argv[1:] != ["live-page"]:
        with tempfile.TemporaryDirectory(prefix="otel-torchdist-pictures-") as scratch:
            draw_report(FOLDER / "report.png", Path(scratch))
    if sys.argv[1:] != ["report"]:
        with tempfile.TemporaryDirectory(prefix="otel-torchdist-pictures-", dir="/dev/shm") as tapes:
            draw_live_page(FOLDER / "live-page.png", Path(tapes), DEADLINE_S)
    if sys.argv[1:]:
        return 0
    binaries = stack_binaries()
    if binaries is None:
        print("the servers have not been built; run `make stack`", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="otel-torchdist-pictures-", dir="/dev/shm") as tapes:
        _draw("demo", _demo(Path(tapes)))
    with tempfile.TemporaryDirectory(prefix="otel-torchdist-pictures-", dir="/dev/shm") as home:
        folder = Path(home)
        with Stack(binaries, folder / "servers", free_ports(), folder) as stack:
            _draw_traces(stack, folder)
    return 0


def _demo(tapes: Path) -> RenderableType:
    """The screen some seconds into the stall."""
    environment = os.environ | {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    command = [str(Path(sys.executable).parent / "otel-torchdist"), "demo", "--output", str(tapes / "demo.jsonl")]
    return photograph(command, environment, lambda text: "has not entered" in text and "absent" in text, DEADLINE_S)


def _draw_traces(stack: Stack, tapes: Path) -> None:
    environment = training_environment(stack.addresses.otlp, tapes, 5.0)
    with running(training_command(4, 60, 25.0), environment, tapes / "training.log"):
        step = _await(lambda: _with_markers(stack))
        alert = _await(lambda: next(iter(stack.alerts.alerts()), None))
        stall = stack.traces.trace(alert.annotations["trace"].rpartition("/")[2])
    _draw("step", timeline(step, "The step in which ranks hang, while they hang", COLUMNS))
    _draw("stall", timeline(stall, f"The alert's trace. {alert.annotations['summary']}", COLUMNS))


def _with_markers(stack: Stack) -> list[JaegerSpan] | None:
    """The step's trace, once all three waiting ranks have been seen twice."""
    for trace in stack.traces.find(SERVICE, {"torchdist.stalled": "true"}):
        if sum(span.name.endswith("(in progress)") for span in trace) >= 6:
            return trace
    return None


def _await(look: Callable[[], _Found | None]) -> _Found:
    deadline = time.monotonic() + DEADLINE_S
    while (found := look()) is None:
        if time.monotonic() > deadline:
            raise TimeoutError("the stall does not show")
        time.sleep(0.5)
    return found


def _draw(name: str, content: RenderableType) -> None:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(content)
    path = FOLDER / f"{name}.svg"
    path.write_text(console.export_svg(code_format=_SVG, unique_id=name))
    print(path.relative_to(DEPLOY.parent))


if __name__ == "__main__":
    sys.exit(main())
