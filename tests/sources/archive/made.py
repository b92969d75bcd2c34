"""Segments made up by a test, and a dictionary for their names."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from otel_torchdist.model.kinds import Flag, How, Phase, TapeState
from otel_torchdist.model.names import CallSiteName, GroupName
from otel_torchdist.model.operations import Operation, Splits
from otel_torchdist.sources.archive.segment import Moment, Segment, SegmentOrigin
from otel_torchdist.tape.names.reader import NamesReader
from otel_torchdist.tape.names.writer import NamesWriter
from tests.support.tapes.fake_tape import RUN_ID, SECOND, TRAIN, WALL_OFFSET_NS, signature
from tests.support.tapes.made_records import made_operation

GROUP = GroupName("0", "mesh_dp", (0, 1), 0, "gloo", True)
NAMES = (GROUP, signature("all_reduce"), TRAIN, "DDP", "RuntimeError", CallSiteName("save", "/home/ada/save.py", 7))
"""Their ids are 1, 2, and so on."""


def names_beside(folder: Path) -> NamesReader:
    """A reader of a dictionary with `NAMES`."""
    path = folder / "made.names"
    if not path.exists():
        writer = NamesWriter(path)
        for name in NAMES:
            writer.intern(name)
        writer.close()
    return NamesReader(path)


def origin(nonce: int = 7, rank: int = 0, run_id: int = RUN_ID, host: str = "node-1") -> SegmentOrigin:
    """A tape of one of two ranks."""
    return SegmentOrigin(nonce, run_id, rank, 2, host, 0xAB << 96, WALL_OFFSET_NS)


def operations(first: int, count: int, seed: int = 0) -> list[Operation]:
    """Operations with consecutive numbers, as those of a busy job, some with waits."""
    chance = random.Random(seed + first)
    found: list[Operation] = []
    at = 1_000 * SECOND + first * 1_000_000
    for number in range(first, first + count):
        at += chance.randrange(1_000_000)
        took = chance.randrange(100_000, 9_000_000)
        is_async = chance.random() < 0.5
        ended = {"returned_ns": at + 9_000, "wait_entered_ns": at + took // 2, "wait_returned_ns": at + took}
        found.append(
            made_operation(
                number,
                at,
                number,
                step=number // 40,
                message_bytes=chance.choice((4096, 1 << 20)),
                signature=2,
                call_site=3,
                label=4 if is_async else 0,
                thread=77,
                flags=Flag.ASYNC if is_async else Flag(0),
                completed_ns=at + took,
                how=How.WAIT if is_async else How.CALL,
                phase=Phase(number % 3),
                splits=Splits(tuple(range(number % 5)), number, 2 * number) if number % 7 == 0 else None,
                **(ended if is_async else {}),
            )
        )
    return found


def segment(ended: Sequence[Operation], first_unread: int, lost: int = 0, **changes: int | str) -> Segment:
    """A segment of these operations; `changes` are those of `origin`."""
    moment = Moment(2_000 * SECOND, WALL_OFFSET_NS, first_unread, lost, TapeState.RUNNING)
    return Segment(origin(**changes), moment, 0, ended)  # pyright: ignore[reportArgumentType]
