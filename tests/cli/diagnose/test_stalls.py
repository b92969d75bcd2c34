"""`otel-torchdist diagnose` on tapes of ranks that died waiting: its evidence, and what it takes for routine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_torchdist.cli.diagnose import document
from otel_torchdist.tape.layout import How, RecordKind
from otel_torchdist.tape.names.model import CallSiteName, GroupName, SignatureName
from otel_torchdist.verdict.model import VerdictKind
from otel_torchdist.world.mismatch import Field
from tests.support.commands.asking import ask
from tests.support.tapes.fake_tape import FakeTape

SIZE = 5
SECOND = 1_000_000_000
WAITED_S = 12
THRESHOLD_S = 5.0
EVERYBODY = GroupName("0", "default_pg", tuple(range(SIZE)), 0, "gloo", True)
SAVE = CallSiteName("save", "/home/user/evaluate.py", 7)


class Tape(FakeTape):
    """A rank's tape, with calls like those of `evaluate.py`."""

    def enter(self, group: GroupName, sequence: int, ago_s: float, elements: int = 4) -> int:
        """Enter an `all_reduce` this long ago; returns its number."""
        names = self.writer.names
        signature = names.intern(SignatureName("all_reduce", "sum", ((elements,),), ("float32",), "cpu", 1))
        return self.writer.begin(
            time.monotonic_ns() - round(ago_s * SECOND), 0, sequence, 16, names.intern(group), signature,
            names.intern(SAVE), 0, -1, 0, 1, RecordKind.OPERATION, 0,
        )  # fmt: skip

    def wait_and_go_on(self, sequence: int, ago_s: float, lasts_s: float) -> None:
        """Record an `all_reduce` that began and lasted as given."""
        entered_ns = time.monotonic_ns() - round(ago_s * SECOND)
        number = self.enter(EVERYBODY, sequence, ago_s)
        self.writer.complete(number, entered_ns, entered_ns + round(lasts_s * SECOND), How.CALL)

    def die(self) -> None:
        """Send a last heartbeat and die without a final record."""
        self.writer.beat()
        self.reader.close()
        self.writer.close()


@pytest.fixture
def tapes(base: Path) -> Iterator[list[Tape]]:
    """Tapes of a job that is still alive."""
    directory = base / "job-000000000000000a"
    directory.mkdir(mode=0o700)
    yield [Tape(directory, rank, SIZE) for rank in range(SIZE)]


def verdict_on(base: Path, tapes: list[Tape]) -> dict[str, Any] | None:
    """The verdict in the document, after all ranks have died at once."""
    for tape in tapes:
        tape.die()
    return ask(base, "--json", threshold_s=THRESHOLD_S).document["verdict"]


def all_but_one_wait(tapes: list[Tape], sequence: int = 1) -> None:
    """All ranks wait except rank 2."""
    for tape in tapes:
        if tape is not tapes[2]:
            tape.enter(EVERYBODY, sequence, WAITED_S)


def test_document_names_all_there_is() -> None:
    """The description of the document has every kind of verdict, and every field about which ranks may disagree."""
    assert document.__doc__ is not None
    for one in (*VerdictKind, *Field):
        assert f"`{one.value}`" in document.__doc__


def test_mismatch_with_many_parties(base: Path, tapes: list[Tape]) -> None:
    """The document has all parties; the text lists those below the sentence that do not fit into it."""
    for tape, elements in zip(tapes, (4, 4, 5, 6, 7), strict=True):
        tape.enter(EVERYBODY, 1, WAITED_S, elements)
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


def test_mismatch_that_the_sentence_cuts_off(base: Path, tapes: list[Tape]) -> None:
    """If every rank disagrees with every other, three are in the sentence and two below it."""
    for tape in tapes:
        tape.enter(EVERYBODY, 1, WAITED_S, elements=4 + tape.writer.identity.rank)
    verdict = verdict_on(base, tapes)
    assert verdict is not None
    assert (verdict["ranks"], len(verdict["mismatch"]["parties"])) == ([0, 1, 2, 3, 4], SIZE)
    answer = ask(base, threshold_s=THRESHOLD_S)
    assert answer.has(
        "verdict  ranks disagree on the shape of .*, rank 2 has 6 elements, and the operation has been blocked for .*"
    )
    assert answer.has("  and    rank 3 has shape 7 elements")
    assert answer.has("  and    rank 4 has shape 8 elements")
    assert answer.out.count("\n  and    ") == 2


def test_circle(base: Path, tapes: list[Tape]) -> None:
    """The document has every rank of the circle with the place where it waits; the text has the last two below."""
    for tape in tapes:
        rank = tape.writer.identity.rank
        pair = GroupName(str(rank + 1), f"pair_{rank}", tuple(sorted((rank, (rank + 1) % SIZE))), 0, "gloo", True)
        tape.enter(pair, 1, WAITED_S)
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


def nothing(tapes: list[Tape]) -> None:
    """No rank expects anything."""


def rank_2_expects_it(tapes: list[Tape]) -> None:
    """Rank 2 expects it to take long."""
    tapes[2].writer.expect_until(time.monotonic_ns() + 600 * SECOND)


def rank_2_expected_it_until_now(tapes: list[Tape]) -> None:
    """Rank 2 expected it to take long, until a little before now: less than the threshold ago."""
    tapes[2].writer.expect_until(time.monotonic_ns() - SECOND)


def rank_2_expected_less(tapes: list[Tape]) -> None:
    """Rank 2 expected it to take long, but until much earlier."""
    tapes[2].writer.expect_until(time.monotonic_ns() - 8 * SECOND)


def one_of_those_expects_it(tapes: list[Tape]) -> None:
    """One waiting rank expects it to take long; the others do not."""
    tapes[0].writer.expect_until(time.monotonic_ns() + 600 * SECOND)


def those_that_wait_expect_it(tapes: list[Tape]) -> None:
    """All waiting ranks expect it to take long."""
    for tape in tapes:
        if tape is not tapes[2]:
            tape.writer.expect_until(time.monotonic_ns() + 600 * SECOND)


@pytest.mark.parametrize(
    ("prepare", "ignored", "is_stall"),
    [
        (nothing, "", True),
        (nothing, "broadcast,evaluate.py:load", True),
        (nothing, "broadcast,evaluate.py:save", False),
        (nothing, "all_red*", False),
        (rank_2_expects_it, "", False),
        (rank_2_expected_it_until_now, "", False),
        (rank_2_expected_less, "", True),
        (one_of_those_expects_it, "", True),
        (those_that_wait_expect_it, "", False),
    ],
)
def test_what_was_expected_or_is_ignored(
    base: Path,
    tapes: list[Tape],
    monkeypatch: pytest.MonkeyPatch,
    prepare: Callable[[list[Tape]], None],
    ignored: str,
    is_stall: bool,
) -> None:
    """The same wait is a stall, or it is not because of an ignore pattern or because ranks expected it."""
    monkeypatch.setenv("OTEL_PYTHON_TORCHDIST_STALL_IGNORE", ignored)
    all_but_one_wait(tapes)
    prepare(tapes)
    verdict = verdict_on(base, tapes)
    answer = ask(base, threshold_s=THRESHOLD_S)
    if is_stall:
        assert verdict is not None
        assert (verdict["kind"], verdict["ranks"]) == ("absent", [2])
        assert answer.has("verdict  rank 2 has not entered all_reduce .*")
    else:
        assert verdict is None
        assert answer.has("no verdict  no operation was open for longer than allowed, and no rank was left behind .*")


@pytest.mark.parametrize(("usually_s", "is_stall"), [(9.0, False), (0.5, True)])
def test_call_site_that_usually_takes_long(base: Path, tapes: list[Tape], usually_s: float, is_stall: bool) -> None:
    """A call site that took nearly as long twice before is not stalled; one that used to be quick is."""
    for tape in tapes:
        for sequence, ago_s in ((1, 60.0), (2, 40.0)):
            tape.wait_and_go_on(sequence, ago_s, usually_s)
    all_but_one_wait(tapes, sequence=3)
    verdict = verdict_on(base, tapes)
    assert (verdict is not None) == is_stall
    assert verdict is None or (verdict["kind"], verdict["ranks"]) == ("absent", [2])
