"""The demo on a terminal: a table that changes, and what happens above it."""

from __future__ import annotations

from types import TracebackType
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from otel_torchdist.cli.alarm import Alarm
from otel_torchdist.cli.demo.view import Picture, View
from otel_torchdist.cli.rank_table import rank_table

_STARTING: Final = "torch and scikit-learn are being loaded"


class LiveView(View):
    """Draws on a terminal, which is put back in any case."""

    def __init__(self, console: Console) -> None:
        """Draw on `console`."""
        self._progress = Progress(
            TextColumn("steps"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=console,
            expand=True,
        )
        self._task = self._progress.add_task("steps", total=None)
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> LiveView:
        """Begin to draw."""
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave the last table where it is."""
        self._live.stop()

    def say(self, text: str) -> None:
        """See `View`."""
        self._print(Text(text))

    def training_says(self, line: str) -> None:
        """See `View`; the newest line is part of each picture."""

    def sound(self, alarm: Alarm) -> None:
        """See `View`."""
        text = Text(alarm.text)
        if alarm.place:
            text.append(f"\n{alarm.place}", style="bold")
        self._print(Panel(text, title="stall", title_align="left", border_style="red"))

    def show(self, picture: Picture) -> None:
        """See `View`."""
        self._progress.update(self._task, total=picture.steps, completed=picture.step)
        parts: list[RenderableType] = [rank_table(picture.rows), self._progress.get_renderable()]
        parts.append(Text(f"training: {picture.training or _STARTING}", style="dim"))
        self._live.update(Group(*parts), refresh=True)

    def _print(self, what: RenderableType) -> None:
        self._live.console.print(what)
