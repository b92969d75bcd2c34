"""The console of all commands, and drawing on a terminal for `watch` and the demo."""

from __future__ import annotations

import contextlib
import errno
import linecache
import logging
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec
import typer
from rich.console import Console, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from otel_torchdist.cli.output.text import shown
from otel_torchdist.judge.stall.events import VerdictGiven
from otel_torchdist.judge.verdict.wording.sentence import sentence
from otel_torchdist.model.reports.finding import NEXT, split_next_step
from otel_torchdist.model.text import plain_rank, readable

MAX_SOURCE_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Alarm:
    """A verdict for people to read.

    Attributes:
        text: The verdict as a sentence.
        place: Current line of the first named rank: `train.py:80: loss.backward()`; '' if unknown.
    """

    text: str
    place: str


def alarm(event: VerdictGiven) -> Alarm:
    """Build the alarm of a verdict."""
    verdict = event.verdict
    place = verdict.places.get(verdict.ranks[0]) if verdict.ranks else None
    text = sentence(verdict, (event.world.taken_ns - verdict.since_ns) / 1e9)
    if place is None or place.frame is None:
        return Alarm(text, "")
    file, line = place.frame.file, place.frame.line
    code = readable(linecache.getline(file, line).strip()) if _may_be_source(file) else ""
    return Alarm(text, f"{shown(file)}:{line}" + (f": {code}" if code else ""))


def _may_be_source(file: str) -> bool:
    """Return False for pipes and devices: a tape may name one as the file of a call, and reading it would not end."""
    with contextlib.suppress(OSError, ValueError):
        facts = os.stat(file)
        return stat.S_ISREG(facts.st_mode) and facts.st_size <= MAX_SOURCE_BYTES
    return True  # a relative name, which `linecache` searches for in `sys.path`


class CommandConsole(Console):
    """A rich console that raises `BrokenPipeError`, for `app` to choose the exit code; rich itself exits with 1."""

    def on_broken_pipe(self) -> None:
        """Raise the error that rich has caught."""
        raise BrokenPipeError


class ReportHandler(logging.Handler):
    """Shows our log messages, for example about an unreadable tape, among the reports of a command."""

    def __init__(self, report: Callable[[str], None], level: int) -> None:
        """Pass messages of at least this level to `report`."""
        super().__init__(level)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        """Report a message."""
        self._report(record.getMessage())


def print_json(result: msgspec.Struct) -> None:
    """Print a result as one JSON document."""
    typer.echo(msgspec.json.format(msgspec.json.encode(result, enc_hook=plain_rank), indent=2))


_HANGING_INDENT: Final = 4


def print_lines(lines: Iterable[Text], margin: int = 0) -> None:
    """Print lines. A terminal gets them wrapped between words and indented; a pipe gets them unwrapped.

    Args:
        lines: The lines.
        margin: Columns by which continuation lines are indented; 0 to indent them further than their first line.
    """
    console = CommandConsole(highlight=False)
    for line in lines:
        for part in (
            _wrapped(line, console, margin or _indent(line) + _HANGING_INDENT) if console.is_terminal else (line,)
        ):
            console.print(part, markup=False, highlight=False, soft_wrap=True)


def _indent(line: Text) -> int:
    return len(line.plain) - len(line.plain.lstrip())


def _wrapped(line: Text, console: Console, margin: int) -> Iterator[Text]:
    """Yield a line in parts that fit; continuation lines are indented by `margin` columns."""
    if line.cell_len <= console.width or console.width < 2 * margin:
        yield line
        return
    first, *words = _parts(line, console, console.width)
    yield first
    for part in _parts(Text(" ").join(words), console, console.width - margin):
        yield Text(" " * margin).append_text(part)


def _parts(line: Text, console: Console, width: int) -> Iterator[Text]:
    for part in line.wrap(console, width):
        part.rstrip()  # rich leaves the space at which it wraps
        yield part


def can_redraw(console: Console) -> bool:
    """Return whether the console is a terminal that can replace printed lines; False for pipes and logs."""
    return console.is_terminal and not console.is_dumb_terminal


def live_display(console: Console) -> Live:
    """Return a display that is redrawn only on request; a context manager that restores the terminal."""
    return Live(console=console, auto_refresh=False)


def redraw(live: Live, content: RenderableType) -> None:
    """Replace the content of a display.

    Raises:
        OSError: The terminal is gone; rich would silently draw nothing.
    """
    if not live.console.is_terminal:
        raise OSError(errno.EIO, "the terminal is gone")
    live.update(content, refresh=True)


def stall_panel(alarm: Alarm) -> RenderableType:
    """Build the box with a verdict and its line of code."""
    description, next_step = split_next_step(alarm.text)
    text = Text(description)
    if alarm.place:
        text.append(f"\n{alarm.place}", style="bold")
    if next_step:
        text.append(f"\n{NEXT} ", style="bold").append(next_step, style="not bold")
    return Panel(text, title="stall", title_align="left", border_style="red")
