"""Deterministic ids of traces and spans, labels of runs, lists of ranks, and printable text.

Ids are hashes, so that ranks share a trace without communicating. Span ids derive from a tape's unique nonce, so they
stay unique even if two runs have the same id. No id is 0: OpenTelemetry treats 0 as "no id".

A rank may give its groups, functions and files any name, and another user's rank may use such a name to forge log
lines, control the terminal, or reverse the direction of text. `readable` is the one place that prevents this.
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
    """Return the span id of operation `number` of a tape. It is known before the operation has ended."""
    return _hash(_SPAN_BYTES, "operation", nonce, number)


def activity_span_id(nonce: int, number: int) -> int:
    """Return the span id of activity `number` of a tape."""
    return _hash(_SPAN_BYTES, "activity", nonce, number)


def anchor_span_id(nonce: int, step: int, segment: int) -> int:
    """Return the id of the parent span of one rank's operations in a segment of a step."""
    return _hash(_SPAN_BYTES, "anchor", nonce, step, segment)


def marker_span_id(nonce: int, number: int, nth: int) -> int:
    """Return the span id of the `nth` marker of an operation in flight."""
    return _hash(_SPAN_BYTES, "marker", nonce, number, nth)


def stall_trace_id(run_id: int, incident: str) -> int:
    """Return the trace id of one incident of a run; `incident` names it within the run."""
    return _hash(_TRACE_BYTES, "stall", run_id, incident)


def stall_span_id(run_id: int, incident: str, epoch: int, bar: str) -> int:
    """Return the span id of a bar (`root`, `rank 2`, …) in an incident's trace. Each new verdict begins an epoch."""
    return _hash(_SPAN_BYTES, "stall", run_id, incident, epoch, bar)


def lone_run_id(nonce: int) -> int:
    """Return a run id for a tape without one."""
    return _hash(_TRACE_BYTES, "run", nonce)


def run_id_of_claim(run_id: int, user: int) -> int:
    """Return the substitute run id of one user, for a run id that the tapes of several users carry."""
    return _hash(_TRACE_BYTES, "claim", run_id, user)


def imported_run_id(contents: Iterable[str]) -> int:
    """Return the id of a run imported from files, from digests of their contents in any order."""
    return _hash(_TRACE_BYTES, "imported", *sorted(contents))


def imported_part_id(run_id: int, part: str) -> int:
    """Return the run id for the import of a part of a run, so that parts have distinct traces and spans."""
    return _hash(_TRACE_BYTES, "part", run_id, part)


def imported_nonce(part_id: int, rank: int) -> int:
    """Return the substitute for a tape's nonce in the import of one rank."""
    return _hash(_SPAN_BYTES, "imported", part_id, rank)


def _hash(size: int, *parts: int | str) -> int:
    digest = blake2b("\0".join(map(str, parts)).encode(), digest_size=size).digest()
    return int.from_bytes(digest, "big") or 1


def run_label(run_id: int) -> str:
    """Return the first eight hex digits of a run id; '' for 0."""
    return f"{run_id:032x}"[:8] if run_id else ""


class MemberRank(int):
    """A process of another world, as a number that no rank of the run has.

    A run may meet such processes in a world that its program creates by hand. Only texts show that they belong to
    another world: `rank 1 of transfer`.
    """

    label: str

    def __new__(cls, number: int, label: str) -> MemberRank:
        """Create a rank with a number and a label such as `1 of transfer`."""
        rank = super().__new__(cls, number)
        rank.label = label
        return rank

    def __str__(self) -> str:
        """Return the label."""
        return self.label


def plain_rank(rank: object) -> int:
    """Return a `MemberRank` as a plain number, for encoders that accept only plain numbers.

    Raises:
        TypeError: The value is not a `MemberRank`.
    """
    if isinstance(rank, MemberRank):
        return int(rank)
    raise TypeError(f"{type(rank).__name__} cannot be encoded")


MAX_RANKS_TEXT: Final = 256
MAX_LISTED: Final = 65_536
MAX_MEMBERS: Final = 4
"""Upper bound on the processes of other worlds that a text names."""
_PART: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def compress_ranks(ranks: Iterable[int], max_text: int = MAX_RANKS_TEXT) -> str:
    """Write ranks as ascending ranges.

    Args:
        ranks: In any order; repeats count once.
        max_text: Upper bound on the characters of the list. Further ranks are only counted.

    Returns:
        `0-7,16`, or `0,2,4,… (509 more)` if the list would be longer than `max_text`; '' for no rank.
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
    """Parse the output of `compress_ranks` into ascending ranks. Ranks that it only counts are left out."""
    ranks: list[int] = []
    for match in filter(None, map(_PART.fullmatch, text.split(","))):
        first, last = int(match[1]), int(match[2] or match[1])
        ranks += range(first, min(last + 1, first + MAX_LISTED - len(ranks)))
    return ranks


def name_ranks(ranks: Sequence[int]) -> str:
    """Name ranks in a sentence: `rank 2`, `ranks 2-3,7`, or `ranks 2-3 and rank 1 of transfer` with another world's."""
    others = [rank for rank in ranks if isinstance(rank, MemberRank)]
    if others:
        of_run = [rank for rank in ranks if not isinstance(rank, MemberRank)]
        named = [*([name_ranks(of_run)] if of_run else []), *(f"rank {rank}" for rank in others[:MAX_MEMBERS])]
        more = len(others) - MAX_MEMBERS
        return " and ".join([*named, f"{more} more"] if more > 0 else named)
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {compress_ranks(ranks)}"


def have(ranks: Sequence[int]) -> str:
    """Return the verb for these ranks: `has` or `have`."""
    return "has" if len(ranks) == 1 else "have"


MAX_SHOWN: Final = 4096
"""Upper bound on the characters of one string: the longest path that Linux allows."""


def readable(text: str, most: int = MAX_SHOWN) -> str:
    r"""Return the text with unprintable characters escaped as in a Python literal, such as `\x1b` or `\u202e`.

    Lone surrogates, as in the path of a file whose name is not UTF-8, cannot be encoded and are escaped too.
    """
    text = text[:most]
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)


def name_caller(function: str, file: str) -> str:
    """Name the outermost function of a thread. The name is the same in every process: `save (train.py)`."""
    return f"{function} ({PurePath(file).name})"


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
