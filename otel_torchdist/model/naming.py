"""Names that are the same everywhere: ids of traces and spans, labels of runs, lists of ranks, displayable text.

Ids are hashes of what they identify, so that ranks share a trace without communicating. Span ids are derived from the
nonce of a tape, which no other tape has, so they stay unique whatever the run's id is. No id is 0: OpenTelemetry
treats that as "no id".

A rank may give its groups, functions and files any name, and another user's rank may use that to forge lines of the
log, control the terminal, or reverse the direction of text. `readable` is the one place that prevents this.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import groupby
from pathlib import PurePath
from typing import Final

_TRACE_BYTES: Final = 16
_SPAN_BYTES: Final = 8


def trace_id_of_step(run_id: int, step: int) -> int:
    """Return the id of the trace of one step, shared by all ranks of a run. Uniform bits, as ratio samplers need."""
    return _hash(_TRACE_BYTES, "step", run_id, step)


def operation_span_id(nonce: int, number: int) -> int:
    """Return the span id of operation `number` of a tape, known before the operation has ended."""
    return _hash(_SPAN_BYTES, "operation", nonce, number)


def activity_span_id(nonce: int, number: int) -> int:
    """Return the span id of activity `number` of a tape."""
    return _hash(_SPAN_BYTES, "activity", nonce, number)


def anchor_span_id(nonce: int, step: int, segment: int) -> int:
    """Return the id of the span that is the parent of one rank's operations in a segment of a step."""
    return _hash(_SPAN_BYTES, "anchor", nonce, step, segment)


def marker_span_id(nonce: int, number: int, nth: int) -> int:
    """Return the span id of the `nth` marker of an operation that is still in progress."""
    return _hash(_SPAN_BYTES, "marker", nonce, number, nth)


def stall_trace_id(run_id: int, incident: str) -> int:
    """Return the trace id of one incident of a run; `incident` names it within the run."""
    return _hash(_TRACE_BYTES, "stall", run_id, incident)


def stall_span_id(run_id: int, incident: str, epoch: int, bar: str) -> int:
    """Return the span id of a bar (`root`, `rank 2`, …) in an incident's trace; each new verdict is a new epoch."""
    return _hash(_SPAN_BYTES, "stall", run_id, incident, epoch, bar)


def lone_run_id(nonce: int) -> int:
    """Return a run id for a tape that never got one."""
    return _hash(_TRACE_BYTES, "run", nonce)


def run_id_of_claim(run_id: int, user: int) -> int:
    """Return the substitute for a run id that tapes of several users carry."""
    return _hash(_TRACE_BYTES, "claim", run_id, user)


def imported_run_id(contents: Iterable[str]) -> int:
    """Return the id of a run that is known from files alone; `contents` stand for their contents, in any order."""
    return _hash(_TRACE_BYTES, "imported", *sorted(contents))


def imported_part_id(run_id: int, part: str) -> int:
    """Return what stands for the run id in an import of a part of it: another part has other traces and spans."""
    return _hash(_TRACE_BYTES, "part", run_id, part)


def imported_nonce(part_id: int, rank: int) -> int:
    """Return what stands for the nonce of a tape in the import of one rank."""
    return _hash(_SPAN_BYTES, "imported", part_id, rank)


def _hash(size: int, *parts: int | str) -> int:
    digest = blake2b("\0".join(map(str, parts)).encode(), digest_size=size).digest()
    return int.from_bytes(digest, "big") or 1


def run_label(run_id: int) -> str:
    """Return the first eight hex digits of a run id; '' while there is none."""
    return f"{run_id:032x}"[:8] if run_id else ""


class MemberRank(int):
    """A process of another world beside the ranks of a run: a number that no rank has, shown as what the process is.

    A run may meet such processes in a world that its program has made by hand. Ranks are numbers everywhere, and so are
    these; only texts show that they are none of the run's: `rank 1 of transfer`.
    """

    label: str

    def __new__(cls, number: int, label: str) -> MemberRank:
        """Give the process a number, and say what it is: `1 of transfer`."""
        found = super().__new__(cls, number)
        found.label = label
        return found

    def __str__(self) -> str:
        """Return what it is."""
        return self.label


def plain_rank(rank: object) -> int:
    """Return the number of a process of another world, for encoders that know plain numbers only.

    Raises:
        TypeError: It is something else.
    """
    if isinstance(rank, MemberRank):
        return int(rank)
    raise TypeError(f"{type(rank).__name__} cannot be encoded")


MAX_RANKS_TEXT: Final = 256
MAX_LISTED: Final = 65_536
MAX_MEMBERS: Final = 4
"""Processes of other worlds that a text names."""
_PART: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def compress_ranks(ranks: Iterable[int], max_text: int = MAX_RANKS_TEXT) -> str:
    """Write ranks as ascending ranges.

    Args:
        ranks: In any order; repeats count once.
        max_text: Characters after which the rest is only counted.

    Returns:
        `0-7,16`, or `0,2,4,… (509 more)` when it would be longer than `max_text`; '' for no rank.
    """
    ascending = sorted(set(ranks))
    text, written = "", 0
    # Consecutive ranks have the same difference to their index.
    for _, run in groupby(enumerate(ascending), lambda item: item[1] - item[0]):
        members = [rank for _, rank in run]
        part = f"{members[0]:d}-{members[-1]:d}" if len(members) > 1 else f"{members[0]:d}"
        longer = f"{text},{part}" if text else part
        if len(longer) > max_text:
            return f"{text},… ({len(ascending) - written} more)"
        text, written = longer, written + len(members)
    return text


def listed_ranks(text: str) -> list[int]:
    """Return the ranks that a text of `compress_ranks` lists, ascending; those that it only counts are left out."""
    found: list[int] = []
    for match in filter(None, map(_PART.fullmatch, text.split(","))):
        first, last = int(match[1]), int(match[2] or match[1])
        found += range(first, min(last + 1, first + MAX_LISTED - len(found)))
    return found


def name_ranks(ranks: Sequence[int]) -> str:
    """`rank 2`, or `ranks 2-3,7`; processes of another world follow: `ranks 2-3 and rank 1 of transfer`."""
    others = [rank for rank in ranks if isinstance(rank, MemberRank)]
    if others:
        own = [rank for rank in ranks if not isinstance(rank, MemberRank)]
        named = [*([name_ranks(own)] if own else []), *(f"rank {rank}" for rank in others[:MAX_MEMBERS])]
        more = len(others) - MAX_MEMBERS
        return " and ".join([*named, f"{more} more"] if more > 0 else named)
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {compress_ranks(ranks)}"


def have(ranks: Sequence[int]) -> str:
    """Return the verb for these ranks: `has` or `have`."""
    return "has" if len(ranks) == 1 else "have"


MAX_SHOWN: Final = 4096
"""Maximum characters of one string; the longest path that Linux allows."""


def readable(text: str, most: int = MAX_SHOWN) -> str:
    r"""Return the text with unprintable characters escaped as in a Python literal, such as `\x1b` or `\u202e`.

    Lone surrogates, as in the path of a file whose name is not UTF-8, cannot be encoded and are escaped too.
    """
    text = text[:most]
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)


def name_caller(function: str, file: str) -> str:
    """Name the outermost function of a thread, the same in every process: `save (train.py)`."""
    return f"{function} ({PurePath(file).name})"


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
