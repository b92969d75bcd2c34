"""Labels of metrics: few, short and always valid, whatever a job calls its groups; of runs, also unique."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, NamedTuple, TypeVar

from otel_torchdist.naming import run_label
from otel_torchdist.semconv import OTHER
from otel_torchdist.tape.layout import RunIdState
from otel_torchdist.tape.records import TapeStatus

MAX_GROUPS: Final = 256
MAX_OPERATIONS: Final = 32
MAX_PAIRS: Final = 512
MAX_SIZED: Final = 768
MAX_VALUE: Final = 120

_Value = TypeVar("_Value", str, tuple[str, str, str])


def label_value(text: str) -> str:
    """Text as a label value: valid UTF-8 (a lone surrogate would fail the whole scrape) and not long."""
    return text.encode("utf-8", "replace").decode()[:MAX_VALUE]


class SeriesLabels:
    """Decides which groups and operations of a job get series of their own: the first ones that a node meets.

    A decision never changes, or a series would change its identity. Used by the reader's thread only.
    """

    def __init__(self) -> None:
        self._groups: set[str] = set()
        self._operations: set[str] = set()
        self._pairs: set[tuple[str, str]] = set()
        self._sized: set[tuple[str, str, str]] = set()

    def group(self, key: str) -> str:
        """The group's own label, or `other` for those beyond `MAX_GROUPS`."""
        return _admit(key, self._groups, MAX_GROUPS)

    def pair(self, group: str, operation: str) -> tuple[str, str]:
        """Labels of a group (as `group` gave it) and one of its operations.

        Operations beyond `MAX_OPERATIONS` are `other`; pairs beyond `MAX_PAIRS` are counted under group `other`.
        """
        pair = group, _admit(label_value(operation), self._operations, MAX_OPERATIONS)
        if group == OTHER or pair in self._pairs:
            return pair
        if len(self._pairs) == MAX_PAIRS:
            return OTHER, pair[1]
        self._pairs.add(pair)
        return pair

    def size(self, pair: tuple[str, str], size: str) -> str:
        """The class of message sizes for operations of a pair, `other` for those beyond `MAX_SIZED` label sets."""
        return size if _admit_one((*pair, size), self._sized, MAX_SIZED) else OTHER


def _admit(value: str, admitted: set[str], most: int) -> str:
    return value if _admit_one(value, admitted, most) else OTHER


def _admit_one(value: _Value, admitted: set[_Value], most: int) -> bool:
    if value in admitted:
        return True
    if len(admitted) == most:
        return False
    admitted.add(value)
    return True


HOLD_BACK_S: Final = 5.0


class RunLabel:
    """Decides when a rank is shown, and under which run.

    A settled run id is shown at once, and so is whatever id there is when the rank ends. An unsettled one is held
    back for `HOLD_BACK_S`. After that the rank is shown under what it has ('' when it has none), because nothing is
    settled while rank 0 hangs. Should the settled id then be another one, those series end and the rank goes on under
    the settled id.

    Attributes:
        shown: The label; None while the rank is held back.
        settled: Whether it can no longer change.
    """

    def __init__(self, label_of: Callable[[int], str] = run_label) -> None:
        """Hold back; `label_of` gives the label of a run's id."""
        self._label_of = label_of
        self.shown: str | None = None
        self.settled = False
        self._unsettled_since_ns: int | None = None

    def update(self, status: TapeStatus, is_running: bool, now_ns: int) -> None:
        """Look at the tape's live words again.

        Args:
            status: The live words.
            is_running: Whether the rank has not ended.
            now_ns: Monotonic clock.
        """
        if self.settled:
            return
        if status.run_id_state in (RunIdState.AGREED, RunIdState.UNAGREED) or not is_running:
            self.shown = self._label_of(status.run_id)
            self.settled = True
            return
        if self._unsettled_since_ns is None:
            self._unsettled_since_ns = now_ns
        if now_ns - self._unsettled_since_ns >= HOLD_BACK_S * 1e9:
            self.shown = self._label_of(status.run_id)

    def settle(self) -> None:
        """The rank's tape will not be read again: what it has is final."""
        self.shown = self.shown or ""
        self.settled = True


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
