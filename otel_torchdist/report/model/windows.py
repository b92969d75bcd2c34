"""What a timeline shows, as a report has it: columns, for there are many calls."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lane:
    """Bars of one rank that do not overlap. Columns, for there are many.

    Attributes:
        rank: The rank.
        group: Index of the group's name; -1 for activities.
        kind: By bar, index of its kind.
        begin: By bar, its begin, as the distance to the one before.
        length: By bar, how long it lasted; -1 if it is open.
        waited: By bar, how long of that it only waited for others; -1 if that is not known.
        sequence: By bar, its position in its group.
        step: By bar, its step; -1 if that is not known.
        loose: Places of bars whose end is known no better than to tens of milliseconds.
    """

    rank: int
    group: int
    kind: tuple[int, ...]
    begin: tuple[int, ...]
    length: tuple[int, ...]
    waited: tuple[int, ...]
    sequence: tuple[int, ...]
    step: tuple[int, ...]
    loose: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BarKind:
    """What calls have in common.

    Attributes:
        name: `all_reduce`, …
        family: Which collective it is a form of: `all_gather` for `all_gather_into_tensor`.
        site: Where it is called, or ''.
        message_bytes: What a rank contributes.
    """

    name: str
    family: str
    site: str
    message_bytes: int


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment: the end of a step, or the arrival of a late rank.

    Attributes:
        at_ns: When.
        label: What.
        is_late: Whether a late rank arrives.
    """

    at_ns: int
    label: str
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class PathPiece:
    """A piece of the critical path.

    Attributes:
        rank: Its rank.
        at_ns: Its begin.
        length_ns: How long it is.
    """

    rank: int
    at_ns: int
    length_ns: int


@dataclass(frozen=True, slots=True)
class Window:
    """A time of which the calls of some ranks are shown.

    Attributes:
        title: `steps 236-239`.
        origin: The wall-clock time that times count from, local time.
        length_ns: How long it is.
        lanes: The calls.
        kinds: What bars are.
        groups: Names of groups.
        marks: Moments in it.
        ranks: How many ranks are shown.
        remarks: What is left out, and how far times of ranks can be compared.
        incident: Which of the incidents it is about; None for steps.
        path: The critical path, as far as it is known here.
    """

    title: str
    origin: str
    length_ns: int
    lanes: tuple[Lane, ...]
    kinds: tuple[BarKind, ...]
    groups: tuple[str, ...]
    marks: tuple[Mark, ...]
    ranks: int
    remarks: tuple[str, ...]
    incident: int | None = None
    path: tuple[PathPiece, ...] = ()
