"""Labels of runs: short, and never one label for two runs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from otel_torchdist.telemetry.ids import run_label

_UNNAMED: Final = "unnamed"


class RunKey(NamedTuple):
    """What tells a run from all others of a node.

    Attributes:
        run_id: Its 128-bit id; 0 while ranks do not know it.
        user: Whose ranks bear it: others could make it up. None for who does not say.
        directory: Of ranks that do not know their run; '' of those that do.
    """

    run_id: int
    user: int | None = None
    directory: str = ""


class RunLabels:
    """Gives each run the first eight digits of its id, or with another number behind them when a run has them already.

    Eight digits can be read on any page of metrics, and so be forged: without this the series of another user's run
    would be replaced.
    """

    def __init__(self) -> None:
        """No run has been seen."""
        self._labels: dict[RunKey, str] = {}

    def of(self, key: RunKey) -> str:
        """The label of a run, the same until it is released."""
        if key not in self._labels:
            self._labels[key] = self._free(run_label(key.run_id))
        return self._labels[key]

    def of_run(self, run_id: int) -> str:
        """The label of a run of which only the id is known."""
        known = (label for key, label in self._labels.items() if key.run_id == run_id)
        return next(known, None) or self.of(RunKey(run_id))

    def keep(self, labels: Collection[str]) -> None:
        """Release all others."""
        self._labels = {key: label for key, label in self._labels.items() if label in labels}

    def _free(self, label: str) -> str:
        taken = set(self._labels.values())
        if label not in taken:
            return label
        numbers = range(2, len(taken) + 3)
        return next(other for number in numbers if (other := f"{label or _UNNAMED}-{number}") not in taken)
