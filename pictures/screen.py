"""A terminal whose screen can be captured while a command runs in it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import pyte
from rich.style import Style
from rich.text import Text

COLUMNS: Final = 100
LINES: Final = 30
_NAMES: Final = {"brown": "yellow", "default": None}


class ScreenError(Exception):
    """The expected text does not appear."""


def photograph(
    command: Sequence[str],
    environment: Mapping[str, str],
    wanted: Callable[[str], bool],
    deadline_s: float,
    lines: int = LINES,
) -> Text:
    """Run a command in a terminal, and capture the screen at the first moment at which it is as wanted.

    Args:
        command: Ended afterwards with SIGINT.
        environment: Its whole environment.
        wanted: Whether this text of the screen is the one to capture.
        deadline_s: How long to wait.
        lines: Height of the terminal.

    Raises:
        ScreenError: The screen never is as wanted; the message has its last text.
    """
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", lines, COLUMNS, 0, 0))
    process = subprocess.Popen(
        command, env=dict(environment), stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    )
    os.close(slave)
    try:
        return _first(master, pyte.Screen(COLUMNS, lines), wanted, time.monotonic() + deadline_s)
    finally:
        process.send_signal(2)
        _drain(master, process)
        os.close(master)


def _first(master: int, screen: pyte.Screen, wanted: Callable[[str], bool], deadline: float) -> Text:
    stream = pyte.ByteStream(screen)
    while time.monotonic() < deadline:
        if select.select([master], [], [], 0.03)[0]:
            stream.feed(os.read(master, 65_536))
            continue
        # No output at the moment, so the screen is not half drawn.
        if wanted("\n".join(screen.display)):
            return _as_text(screen)
    raise ScreenError("\n".join(screen.display))


def _drain(master: int, process: subprocess.Popen[bytes]) -> None:
    """A command that cannot write would not end."""
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        if select.select([master], [], [], 0.2)[0]:
            try:
                os.read(master, 65_536)
            except OSError:
                break
    if process.poll() is None:
        process.kill()
    process.wait()


def _as_text(screen: pyte.Screen) -> Text:
    lines: list[Text] = []
    for row in range(screen.lines):
        line = Text()
        for column in range(screen.columns):
            char = screen.buffer[row][column]
            line.append(char.data, Style(color=_color(char.fg), bgcolor=_color(char.bg), bold=char.bold))
        line.rstrip()
        lines.append(line)
    while lines and not lines[-1].plain:
        lines.pop()
    return Text("\n").join(lines)


def _color(name: str) -> str | None:
    if name in _NAMES:
        return _NAMES[name]
    if len(name) == 6 and all(digit in "0123456789abcdef" for digit in name):
        return f"#{name}"
    return f"bright_{name.removeprefix('bright')}" if name.startswith("bright") else name
