"""`otel-torchdist diagnose` on tapes of ranks that died waiting: its evidence, and what it takes for routine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from otel_torchdist.judge.world.mismatch import Field
from otel_torchdist.model.names import CallSiteName, GroupName
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.runs.diagnosis.verdict_result import MismatchResult, VerdictResult
from tests.support.commands.asking import ask
from tests.support.tapes.fake_tape import SECOND, FakeTape

SIZE = 5
WAITED_S = 12
THRESHOLD_S = 5.0
EVERYBODY = GroupName("0", "default_pg", tuple(range(SIZE)), 0, "gloo", True)
SAVE = CallSiteName("save", "/home/user/evaluate.py", 7)


@pytest.fixture
def tapes(base: Path) -> list[FakeTape]:
    """Tapes of a job that is still alive."""
    directory = base / "job-000000000000000a"
    directory.mkdir(mode=0o700)
    return [FakeTape(directory, rank, SIZE) for rank in range(SIZE)]


def enter(tape: FakeTape, sequence: int = 1, group: GroupName = EVERYBODY, elements: int = 4) -> None:
    """Enter an `all_reduce` in which the rank has waited ever since."""
    at = time.monotonic_ns() - WAITED_S * SECOND
    tape.begin("all_reduce", group, at=at, sequence=sequence, elements=elements, call_site=SAVE)


def verdict_on(base: Path, tapes: list[FakeTape]) -> dict[str, Any] | None:
    """The verdict in the document, after all ranks have died at once."""
    for tape in tapes:
        tape.die()
    return ask(base, "--json", threshold_s=THRESHOLD_S).document["verdict"]


def all_but_one_wait(tapes: list[FakeTape], sequence: int = 1) -> None:
    """All ranks wait except rank 2."""
    for tape in tapes:
        if tape is not tapes[2]:
            enter(tape, sequence)


def test_document_names_all_there_is() -> None:
    """The description of the document has every kind of verdict, and every field about which ranks may disagree."""
    described = " ".join(f"{VerdictResult.__doc__} {MismatchResult.__doc__}".split())
    for one in (*VerdictKind, *Field):
        assert f"`{one.value}`" in described


def test_mismatch_with_many_parties(base: Path, tapes: list[FakeTape]) -> None:
    """The document has all parties; the text lists those below the sentence that do not fit into it."""
    for tape, elements in zip(tapes, (4, 4, 5, 6, 7), strict=True):
        enter(tape, elements=elements)
    verdict = verdict_on(base, tapes)
    assert verdict is not None
    assert (verdict["kind"], verdict["ranks"], verdict["circle"]) == ("mismatched", [2, 3, 4], None)
    assert verdict["mismatch"] == {
        "field": "shape",
        "sequence": 1,
        "parties": [
            {"value": "4 elements", "ranks": [0, 1]},
            {"value": "5 elements", "ranks": [2]},
            {"value": "6 elements", "ranks": [3]},
            {"value": "7 elements", "ranks": [4]},
        ],
    }
    assert "\n  and    " not in ask(base, threshold_s=THRESHOLD_S).out


def test_mismatch_that_the_sentence_cuts_off(base: Path, tapes: list[FakeTape]) -> None:
    """If every rank disagrees with every other, three are in the sentence and two below it."""
    for tape in tapes:
        enter(tape, elements=4 + tape.writer.identity.rank)
    verdict = verdict_on(base, tapes)
    assert verdict is not None
    assert (verdict["ranks"], len(verdict["mismatch"]["parties"])) == ([0, 1, 2, 3, 4], SIZE)
    answer = ask(base, threshold_s=THRESHOLD_S)
    assert answer.has(
        "verdict  ranks disagree on the shape of .*, rank 2 has 6 elements; .*; the operation has been blocked for .*"
    )
    assert answer.has("  and    rank 3 has shape 7 elements")
    assert answer.has("  and    rank 4 has shape 8 elements")
    assert answer.out.count("\n  and    ") == 2


def test_circle(base: Path, tapes: list[FakeTape]) -> None:
    """The document has every rank of the circle with the place where it waits; the text has the last two below."""
    for tape in tapes:
        rank = tape.writer.identity.rank
        pair = GroupName(str(rank + 1), f"pair_{rank}", tuple(sorted((rank, (rank + 1) % SIZE))), 0, "gloo", True)
        enter(tape, group=pair)
    verdict = verdict_on(base, tapes)
    assert verdict is not None
    assert (verdict["kind"], verdict["ranks"], verdict["mismatch"]) == ("circular", [0, 1, 2, 3, 4], None)
    circle = verdict["circle"]
    assert sorted(link["rank"] for link in circle) == [0, 1, 2, 3, 4]
    for link, following in zip(circle, [*circle[1:], circle[0]], strict=True):
        assert (link["operation"], link["sequence"]) == ("all_reduce", 1)
        assert link["group"]["name"] == f"pair_{link['rank']}"
        assert following["rank"] == link["waits_for"] == (link["rank"] + 1) % SIZE
        assert link["ranks"] == [link["rank"]]
    answer = ask(base, threshold_s=THRESHOLD_S)
    assert answer.has("verdict  ranks 0-4 have waited for each other for .*; 2 more.*")
    for link in circle[3:]:
        assert answer.has(rf"  and    rank {link['rank']} in all_reduce \(sequence 1, pair_{link['rank']}\)")
    assert answer.out.count("\n  and    ") == 2


@pytest.mark.parametrize(
    ("expecting", "until_s", "ignored", "is_stall"),
    [
        pytest.param((), 0, "", True, id="nothing is expected"),
        pytest.param((), 0, "broadcast,evaluate.py:load", True, id="others are ignored"),
        pytest.param((), 0, "broadcast,evaluate.py:save", False, id="its line is ignored"),
        pytest.param((), 0, "all_red*", False, id="its operation is ignored"),
        pytest.param((2,), 600, "", False, id="rank 2 expects it"),
        pytest.param((2,), -1, "", False, id="rank 2 has expected it until less than the threshold ago"),
        pytest.param((2,), -8, "", True, id="rank 2 has expected it until much earlier"),
        pytest.param((0,), 600, "", True, id="one of those that wait expects it"),
        pytest.param((0, 1, 3, 4), 600, "", False, id="all that wait expect it"),
    ],
)
def test_what_was_expected_or_is_ignored(
    base: Path, tapes: list[FakeTape], expecting: tuple[int, ...], until_s: int, ignored: str, is_stall: bool
) -> None:
    """The same wait is a stall, or it is not because of an ignore pattern or because ranks expected it."""
    all_but_one_wait(tapes)
    for rank in expecting:
        tapes[rank].writer.expect_until(time.monotonic_ns() + until_s * SECOND)
    for tape in tapes:
        tape.die()
    answer = ask(base, threshold_s=THRESHOLD_S, OTEL_PYTHON_TORCHDIST_STALL_IGNORE=ignored)
    assert answer.has(
        "verdict  rank 2 has not entered all_reduce .*"
        if is_stall
        else "no verdict  no operation was open for longer than allowed, and no rank was left behind .*"
    )


@pytest.mark.parametrize(("usually_s", "is_stall"), [(9, False), (0.5, True)])
def test_call_site_that_usually_takes_long(base: Path, tapes: list[FakeTape], usually_s: float, is_stall: bool) -> None:
    """A call site that took nearly as long twice before is not stalled; one that used to be quick is."""
    for tape in tapes:
        for sequence, ago_s in ((1, 60), (2, 40)):
            at, lasts = time.monotonic_ns() - ago_s * SECOND, round(usually_s * SECOND)
            tape.run("all_reduce", EVERYBODY, at=at, lasts=lasts, sequence=sequence, call_site=SAVE)
    all_but_one_wait(tapes, sequence=3)
    verdict = verdict_on(base, tapes)
    assert (verdict is not None) == is_stall
    assert verdict is None or (verdict["kind"], verdict["ranks"]) == ("absent", [2])
