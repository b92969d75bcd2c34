"""The critical path as a report has it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PathPart:
    """Pieces of the path with something in common, in an average step.

    Attributes:
        kind: `computing` or `transfer`.
        rank: The rank.
        operation: The call that the rank computed before, or that transferred; '' before the end of a step.
        group: The call's group; ''.
        site: Where that is called; ''.
        length_ns: How long they are.
        doing: What the rank does meanwhile: `waiting for data`, `computing`; '' in transfers.
    """

    kind: str
    rank: int
    operation: str
    group: str
    site: str
    length_ns: int
    doing: str = ""


@dataclass(frozen=True, slots=True)
class RankParts:
    """What ranks did in an average step, in columns.

    Attributes:
        rank: Global ranks, ascending.
        on_path_ns: Their computing on the path.
        computing_ns: Time in which nothing held them up.
        waiting_ns: Time in which they waited for another rank.
        transfer_ns: Time in which calls held them up after all had arrived.
        waits_for: The rank for which they waited most; -1 for none.
    """

    rank: tuple[int, ...]
    on_path_ns: tuple[int, ...]
    computing_ns: tuple[int, ...]
    waiting_ns: tuple[int, ...]
    transfer_ns: tuple[int, ...]
    waits_for: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gain:
    """Something that makes steps longer, and what its removal would bring.

    Attributes:
        sentence: What it is.
        ranks: The ranks concerned, as a list of ranges.
        gain_ns: What a step would be shorter at most.
    """

    sentence: str
    ranks: str
    gain_ns: int


@dataclass(frozen=True, slots=True)
class Hint:
    """Something worth looking into.

    Attributes:
        topic: What it is about.
        text: What was measured.
        check: How to check it.
        page: The page of the documentation on it.
    """

    topic: str
    text: str
    check: str
    page: str


@dataclass(frozen=True, slots=True)
class Path:
    """The critical path of steady steps.

    Attributes:
        first_step: First of the steps; None if there are no steps and all calls count as one.
        last_step: Last of the steps; None likewise.
        steps: How many there are.
        unsteady: How many were left out because they took unusually long.
        step_ns: The median step.
        path_ns: Length of the path in an average step.
        computing_ns: How much of that is computing.
        transfer_ns: How much of that is transfer.
        parts: Rank, kind and line, the longest first.
        parts_left_out: How many more there are.
        ranks: What each rank did.
        gains: What could be removed, the greatest gain first.
        notes: What could not be taken into account.
    """

    first_step: int | None
    last_step: int | None
    steps: int
    unsteady: int
    step_ns: int
    path_ns: int
    computing_ns: int
    transfer_ns: int
    parts: tuple[PathPart, ...]
    parts_left_out: int
    ranks: RankParts
    gains: tuple[Gain, ...]
    notes: tuple[str, ...]
