"""What an agent has found in a run is shown afterwards, once each, and what no longer held is told apart."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_torchdist.agent.results import FindingsLog
from otel_torchdist.judge.stall.findings.slow import finding_of, over_of
from otel_torchdist.model.kinds import TapeState
from otel_torchdist.model.reports.finding import Finding, FindingKind, FindingOver, JudgedWorld, SlowPart
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.node.job.kept_results import MAX_FINDINGS_BYTES as MAX_FILE_BYTES
from otel_torchdist.node.job.kept_results import MAX_KEPT, KeptFinding, read_kept_findings, write_kept_findings
from tests.support.commands.asking import ask
from tests.support.tapes.fake_tape import RUN_ID, SECOND, FakeTape
from tests.support.worlds.fake_world import FakeWorld


def slow(rank: int, text: str) -> SlowPart:
    """A rank that is slow."""
    return SlowPart(FindingKind.SLOW_RANK, (rank,), "all_reduce", "group", None, 0.05, 0.04, 0.1, 16, (0, 1), text)


@pytest.fixture
def ranks(base: Path) -> Iterator[list[FakeTape]]:
    """Two ranks of a run, which have finished."""
    directory = base / "job-000000000000000a"
    directory.mkdir(mode=0o700, parents=True)
    made = [FakeTape(directory, rank, world_size=2) for rank in range(2)]
    for one in made:
        one.run(at=time.monotonic_ns() - SECOND, lasts=SECOND // 1000)
        one.writer.beat()
    yield made
    for one in made:
        one.reader.close()


def said(text: str) -> str:
    """Return the text of a finding with its next step."""
    return FindingKind.SLOW_RANK.with_next_step(text)


def found(ranks: list[FakeTape], part: SlowPart) -> Finding:
    """The event of a slow rank, as seen with these ranks."""
    world = FakeWorld(2).snapshot(1.0)
    views = {
        rank: dataclasses.replace(view, nonce=one.reader.identity.nonce)
        for (rank, view), one in zip(world.ranks.items(), ranks, strict=True)
    }
    return finding_of(part, JudgedWorld(WorldSnapshot(RUN_ID, world.taken_ns, views), RUN_ID))


def update(ranks: list[FakeTape], *events: Finding | FindingOver) -> list[KeptFinding]:
    """Have an agent write events; returns what a reader finds."""
    log = FindingsLog()
    for event in events:
        log.update([event], [one.reader for one in ranks])
    return read_kept_findings(ranks[0].reader.path.parent, RUN_ID)


def test_found_again(ranks: list[FakeTape]) -> None:
    """A finding that an agent makes again, or the next agent, replaces the one before."""
    kept = update(ranks, found(ranks, slow(1, "slow by 5 ms")), found(ranks, slow(0, "other")))
    assert [(one.kind, one.ranks, one.text, one.until_ns) for one in kept] == [
        ("slow_rank", "1", said("slow by 5 ms"), 0),
        ("slow_rank", "0", said("other"), 0),
    ]
    again = update(ranks, found(ranks, slow(1, "slow by 6 ms")))
    assert [one.text for one in again] == [said("other"), said("slow by 6 ms")]


def test_over(ranks: list[FakeTape]) -> None:
    """A finding that no longer holds is kept with the time of its end; one of another rank still holds."""
    part = slow(1, "slow by 5 ms")
    kept = update(ranks, found(ranks, part), found(ranks, slow(0, "other")), over_of(part, RUN_ID))
    assert [bool(one.until_ns) for one in kept] == [True, False]


def test_diagnose(base: Path, ranks: list[FakeTape]) -> None:
    """`diagnose` shows what held to the end, with exit code 1, and on request what did not."""
    for one in ranks:
        one.writer.finish(TapeState.FINISHED)
        one.writer.close()
    part = slow(1, "rank 1 waits 52.1 ms longer for data than its peers")
    update(ranks, found(ranks, part))
    asked = ask(base)
    assert asked.code == 1
    assert asked.has(rf"finding  {re.escape(part.text)}\n  next   {re.escape(FindingKind.SLOW_RANK.next_step)}")
    update(ranks, found(ranks, part), over_of(part, RUN_ID))
    asked = ask(base, "--json")
    document = asked.document
    [past] = document["past_findings"]
    assert (asked.code, document["problem"], document["findings"]) == (0, False, [])
    assert past.startswith("until ") and past.endswith(f": {said(part.text)}")


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b'[{"kind": 1}]', b"[" * 5000, b"\xff", b" " * (MAX_FILE_BYTES + 1)],
    ids=["empty", "object", "number", "deep", "bytes", "long"],
)
def test_hostile_file(base: Path, ranks: list[FakeTape], content: bytes) -> None:
    """A file that does not hold findings is ignored."""
    [one] = update(ranks, found(ranks, slow(1, "slow")))
    assert one.text == said("slow")
    [path] = base.glob("*/findings-*.json")
    path.write_bytes(content)
    assert read_kept_findings(path.parent, RUN_ID) == []


def test_bounds(tmp_path: Path) -> None:
    """Of more findings than are kept the newest are, in a file that can be read; control characters are escaped."""
    many = [KeptFinding("straggler", str(rank), "", "\x1b" * 2048, 1) for rank in range(MAX_KEPT + 5)]
    write_kept_findings(tmp_path, 7, many)
    kept = read_kept_findings(tmp_path, 7)
    assert [one.ranks for one in kept] == [str(rank) for rank in range(5, MAX_KEPT + 5)]
    assert "\x1b" not in kept[0].text
