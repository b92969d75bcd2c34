"""Labels of metrics: bounded in number and length, valid for any group name of a job, and unique for runs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, NamedTuple, TypeVar

from otel_torchdist.model.ids import run_label
from otel_torchdist.model.kinds import RunIdState
from otel_torchdist.tape.status import TapeStatus
from otel_torchdist.telemetry.semconv import OTEL_OTHER, OTHER

# Upper bounds on the distinct labels of one job on this node: groups, operations, pairs of group and operation, pairs
# with a message size class, functions of remote calls, and functions with an error type.
MAX_GROUPS: Final = 256
MAX_OPERATIONS: Final = 32
MAX_PAIRS: Final = 512
MAX_SIZED: Final = 768
MAX_METHODS: Final = 64
MAX_CALLS: Final = 128
MAX_VALUE: Final = 120
"""Upper bound on the characters of a label value."""

_Value = TypeVar("_Value", str, tuple[str, str], tuple[str, str, str])


def label_value(text: str) -> str:
    """Shorten text to a label value, and make it valid UTF-8: a lone surrogate would fail the whole scrape."""
    return text.encode("utf-8", "replace").decode()[:MAX_VALUE]


class SeriesLabels:
    """Admits groups and operations of a job to separate series, in order of first use on the node.

    Decisions are final: otherwise a series would change its identity. Used only by the reader's thread.
    """

    def __init__(self) -> None:
        self._groups: set[str] = set()
        self._operations: set[str] = set()
        self._pairs: set[tuple[str, str]] = set()
        self._sized: set[tuple[str, str, str]] = set()
        self._methods: set[str] = set()
        self._calls: set[tuple[str, str]] = set()

    def group(self, key: str) -> str:
        """Return the label of a group: its key, or `other` beyond `MAX_GROUPS`."""
        return _admit(key, self._groups, MAX_GROUPS)

    def pair(self, group: str, operation: str) -> tuple[str, str]:
        """Return the labels of a group (as `group` returned it) and one of its operations.

        Operations beyond `MAX_OPERATIONS` are `other`. Pairs beyond `MAX_PAIRS` are counted under group `other`.
        """
        pair = group, _admit(label_value(operation), self._operations, MAX_OPERATIONS)
        if group == OTHER or pair in self._pairs:
            return pair
        if len(self._pairs) == MAX_PAIRS:
            return OTHER, pair[1]
        self._pairs.add(pair)
        return pair

    def size(self, pair: tuple[str, str], size: str) -> str:
        """Return the label of a message size class for a pair; `other` beyond `MAX_SIZED` label sets."""
        return size if _is_admitted((*pair, size), self._sized, MAX_SIZED) else OTHER

    def call(self, method: str, error: str) -> tuple[str, str]:
        """Return the labels of remote calls of a function that ended with this error; '' for no error.

        Functions beyond `MAX_METHODS`, and errors beyond `MAX_CALLS` pairs of function and error, are `_OTHER`.
        """
        method, error = label_value(method), label_value(error)
        if not _is_admitted(method, self._methods, MAX_METHODS):
            method = OTEL_OTHER
        is_admitted = not error or _is_admitted((method, error), self._calls, MAX_CALLS)
        return method, error if is_admitted else OTEL_OTHER


def _admit(value: str, admitted: set[str], limit: int) -> str:
    return value if _is_admitted(value, admitted, limit) else OTHER


def _is_admitted(value: _Value, admitted: set[_Value], limit: int) -> bool:
    if value in admitted:
        return True
    if len(admitted) == limit:
        return False
    admitted.add(value)
    return True


HOLD_BACK_S: Final = 5.0
"""Time that a rank with an unsettled run id is held back from the metrics."""


class RunLabel:
    """Decides when a rank is shown, and under which run.

    A run id is settled once the ranks have agreed on it, or know that they cannot agree. A settled id is shown
    immediately. An unsettled id is shown when the rank ends, or after `HOLD_BACK_S`, because
    no id settles while rank 0 hangs. Without an id the label is ''. If the id settles later and differs, the series
    end, and the rank continues under the settled id.

    Attributes:
        shown: The label; None while the rank is held back.
        settled: Whether the label is final.
    """

    def __init__(self, label_of: Callable[[int], str] = run_label) -> None:
        """Start held back. `label_of` returns the label of a run id."""
        self._label_of = label_of
        self.shown: str | None = None
        self.settled = False
        self._unsettled_since_ns: int | None = None

    def update(self, status: TapeStatus, is_running: bool, now_ns: int) -> None:
        """Update the label from the tape's live words.

        Args:
            status: The live words.
            is_running: Whether the rank is still running.
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
        """Make the label final, because the rank's tape will not be read again."""
        self.shown = self.shown or ""
        self.settled = True


_UNNAMED: Final = "unnamed"


class RunIdentity(NamedTuple):
    """Identifies a run among all runs of a node.

    Attributes:
        run_id: Its 128-bit id; 0 while its ranks do not know it.
        user: Owner of its ranks, because other users could forge the id; None if unknown.
        directory: Job directory of ranks with unknown run id; '' otherwise.
    """

    run_id: int
    user: int | None = None
    directory: str = ""


class RunLabels:
    """Labels each run with the first eight digits of its id, and a number if another run already has this label.

    Every metrics page shows these digits, so other users can forge a run with them. Without the number, a forged run
    would replace the series of another user's run.
    """

    def __init__(self) -> None:
        self._labels: dict[RunIdentity, str] = {}

    def of(self, key: RunIdentity) -> str:
        """Return the label of a run. It stays the same until it is released."""
        if key not in self._labels:
            self._labels[key] = self._free(run_label(key.run_id))
        return self._labels[key]

    def of_run(self, run_id: int) -> str:
        """Return the label of a run, given only its id."""
        labels = (label for key, label in self._labels.items() if key.run_id == run_id)
        return next(labels, None) or self.of(RunIdentity(run_id))

    def keep(self, labels: Collection[str]) -> None:
        """Release all labels except these."""
        self._labels = {key: label for key, label in self._labels.items() if label in labels}

    def _free(self, label: str) -> str:
        taken = set(self._labels.values())
        if label not in taken:
            return label
        numbers = range(2, len(taken) + 3)
        return next(free for number in numbers if (free := f"{label or _UNNAMED}-{number}") not in taken)
