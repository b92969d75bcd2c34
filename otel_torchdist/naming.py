"""Names that are alike everywhere: ids of traces and spans, labels of runs, lists of ranks, text that can be shown.

Ids are hashes of what they stand for, so that ranks meet in a trace without communicating. Span ids start from the
nonce of a tape, which no other tape has, so they stay unique whatever the run's id is. No id is 0: OpenTelemetry takes
that for "no id".

A rank may call its groups, functions and files anything, and another user's rank may forge a line of the log, steer
the terminal, or reverse the direction of text. `readable` is the one place where that ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import groupby
from typing import Final

_TRACE_BYTES: Final = 16
_SPAN_BYTES: Final = 8


def trace_id_of_step(run_id: int, step: int) -> int:
    """The trace in which all ranks of a run show one step. Its bits are uniform, as ratio samplers need them."""
    return _hash(_TRACE_BYTES, "step", run_id, step)


def operation_span_id(nonce: int, number: int) -> int:
    """The span of operation `number` of a tape, known before the operation has ended."""
    return _hash(_SPAN_BYTES, "operation", nonce, number)


def anchor_span_id(nonce: int, step: int, segment: int) -> int:
    """The span under which one rank's operations of a segment of a step hang."""
    return _hash(_SPAN_BYTES, "anchor", nonce, step, segment)


def marker_span_id(nonce: int, number: int, nth: int) -> int:
    """The `nth` sign of life of an operation that is still in progress."""
    return _hash(_SPAN_BYTES, "marker", nonce, number, nth)


def stall_trace_id(run_id: int, incident: str) -> int:
    """The trace of one incident of a run; `incident` names it within the run."""
    return _hash(_TRACE_BYTES, "stall", run_id, incident)


def stall_span_id(run_id: int, incident: str, epoch: int, bar: str) -> int:
    """A bar (`root`, `rank 2`, …) in the trace of an incident; each change of the verdict is a new epoch."""
    return _hash(_SPAN_BYTES, "stall", run_id, incident, epoch, bar)


def lone_run_id(nonce: int) -> int:
    """A run id for a tape that never learnt one."""
    return _hash(_TRACE_BYTES, "run", nonce)


def run_id_of_claim(run_id: int, user: int) -> int:
    """What stands for a run id that tapes of several users bear."""
    return _hash(_TRACE_BYTES, "claim", run_id, user)


def _hash(size: int, *parts: int | str) -> int:
    digest = blake2b("\0".join(map(str, parts)).encode(), digest_size=size).digest()
    return int.from_bytes(digest, "big") or 1


def run_label(run_id: int) -> str:
    """The first eight hex digits of a run id; '' while there is none."""
    return f"{run_id:032x}"[:8] if run_id else ""


MAX_RANKS_TEXT: Final = 256
MAX_LISTED: Final = 65_536
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
    # Neighbours have the same distance to their index.
    for _, run in groupby(enumerate(ascending), lambda item: item[1] - item[0]):
        members = [rank for _, rank in run]
        part = f"{members[0]}-{members[-1]}" if len(members) > 1 else str(members[0])
        longer = f"{text},{part}" if text else part
        if len(longer) > max_text:
            return f"{text},… ({len(ascending) - written} more)"
        text, written = longer, written + len(members)
    return text


def listed_ranks(text: str) -> list[int]:
    """The ranks that a text of `compress_ranks` writes out, ascending; what it only counts is left out."""
    found: list[int] = []
    for match in filter(None, map(_PART.fullmatch, text.split(","))):
        first, last = int(match[1]), int(match[2] or match[1])
        found += range(first, min(last + 1, first + MAX_LISTED - len(found)))
    return found


def name_ranks(ranks: Sequence[int]) -> str:
    """`rank 2`, or `ranks 2-3,7`."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {compress_ranks(ranks)}"


def have(ranks: Sequence[int]) -> str:
    """The verb that goes with ranks: `has` or `have`."""
    return "has" if len(ranks) == 1 else "have"


MAX_SHOWN: Final = 4096
"""Of one string; the longest path that Linux allows."""


def readable(text: str, most: int = MAX_SHOWN) -> str:
    r"""The text, with everything that does not print written as in a Python literal, such as `\x1b` or `\u202e`.

    Half a surrogate pair, as in the path of a file whose name is not UTF-8, cannot be encoded and is written so too.
    """
    text = text[:most]
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
