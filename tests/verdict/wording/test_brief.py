"""The first sentence is short, whatever names a program has, and says which rank, in what, and both lines."""

import dataclasses
import re

import pytest

from otel_torchdist.model.calls import OperationId
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.occupations import SharedGroup
from otel_torchdist.model.verdict_kinds import VerdictKind
from otel_torchdist.verdict.first_death import FirstDeath
from otel_torchdist.verdict.model import Doubt, Link, Sharing, Verdict
from otel_torchdist.verdict.wording.sentence import ALONE, MOST, WITH_PLACE, compose, sentence
from otel_torchdist.world.mismatch import Field, Mismatch
from otel_torchdist.world.places import PlaceSource, RankPlace
from otel_torchdist.world.ways import CallSide, Ways
from tests.support.worlds.fake_world import FakeWorld, group_of
from tests.support.worlds.judging import the_verdict

LONG = "a_name_that_its_author_has_not_found_too_long_until_now"
GROUP = group_of(0, 1, 2, 3, description=f"mesh_{LONG}")
WAITS = CallSiteName(f"Trainer.{LONG}.<locals>.reduce", f"/home/ada/{LONG}_trainer.py", 1042)
MISSING = CallSiteName(f"Dataset.{LONG}", f"/home/ada/{LONG}_dataset.py", 1057, f"package.{LONG}")
BOTH_LINES = (r":1042\b", r":1057\b")


A_SHARED_GROUP = SharedGroup(
    GROUP.key, ("all_reduce", "reduce_scatter_tensor_coalesced"), (WAITS, MISSING), 0, ("main", f"{LONG} (train.py)")
)
A_DEATH = FirstDeath((2,), {}, False, False, False, True, 0, None, 0)
OF_TWO_CALLS = (VerdictKind.CIRCULAR, VerdictKind.SHARED_GROUP)
"""Two operations with the lines of both are more than other kinds have to say."""


def long_verdict(kind: VerdictKind) -> Verdict:
    """Rank 2 of four is at fault, in a way that its kind says, and every name is long."""
    world = FakeWorld(4)
    for rank in (0, 1, 3):
        world.ranks[rank].label = f"FSDP {LONG}"
        world.ranks[rank].enter(GROUP, 1.0, "reduce_scatter_tensor_coalesced", frames=(WAITS,))
    found = the_verdict(world.snapshot(3_000.0))
    sides = tuple(CallSide("reduce_scatter_tensor_coalesced", f"FSDP {LONG}", site) for site in (WAITS, MISSING))
    parties = ("4,096 elements", (0, 1, 3)), ("8,192 elements", (2,))
    waits = found.roll.waits
    links = ((2, MISSING), (3, WAITS))
    where = found.operation_id, found.operation, GROUP, f"FSDP {LONG}"
    return dataclasses.replace(
        found,
        roll=dataclasses.replace(found.roll, waits={**waits, 2: waits[3]}),
        kind=kind,
        ranks=(2, 3) if kind is VerdictKind.CIRCULAR else (2,),
        places={rank: RankPlace(PlaceSource.STACK, MISSING if rank == 2 else WAITS) for rank in range(4)},
        mismatch=mismatch_of(found.operation_id, parties, sides) if kind is VerdictKind.MISMATCHED else None,
        circle=tuple(Link(rank, *where, call_site=site) for rank, site in links)
        if kind is VerdictKind.CIRCULAR
        else (),
        doubt=Doubt.RECORDS_LOST if kind is VerdictKind.UNKNOWN else None,
        hosts=(f"{LONG}.example.org",) if kind is VerdictKind.UNREACHABLE else (),
        first=None if kind is not VerdictKind.DEAD else A_DEATH,
        sharing=Sharing((0, 1), A_SHARED_GROUP) if kind is VerdictKind.SHARED_GROUP else None,
        failures={2: f"{LONG}Error"} if kind is VerdictKind.DEAD else {},
    )


def mismatch_of(
    operation_id: OperationId, parties: tuple[tuple[str, tuple[int, ...]], ...], sides: tuple[CallSide, ...]
) -> Mismatch:
    """What the ranks disagree about."""
    ways = Ways(sides, left_out=sides[0])
    return Mismatch(operation_id, Field.SHAPE, "reduce_scatter_tensor_coalesced", parties, ways=ways)


@pytest.mark.parametrize("kind", VerdictKind)
def test_first_sentence_of_every_kind(kind: VerdictKind) -> None:
    """Names are cut in the middle: lines, and what tells two files apart, remain."""
    lead = re.split(r"\. (?=[A-Z0-9])", sentence(long_verdict(kind), 2_999.0))[0]
    assert len(lead) <= (ALONE if kind in OF_TWO_CALLS else WITH_PLACE), lead
    assert lead.startswith(("rank 2 ", "ranks 2-3 ", "all 4 ranks ", "two threads of ranks 0-1 ", "reduce_")), lead
    wanted = {
        VerdictKind.MISMATCHED: BOTH_LINES,
        VerdictKind.CIRCULAR: BOTH_LINES,
        VerdictKind.ABSENT: BOTH_LINES[1:],
    }
    for line in wanted.get(kind, ()):
        assert re.search(line, lead), lead


def test_what_does_not_fit_comes_after() -> None:
    """Nothing is lost: clauses that do not fit begin the second sentence, in their order."""
    clauses = ["rank 2 has not come", *(f"clause {number} of many words and no long name" for number in range(6))]
    said = compose(clauses, ["the rest"])
    first, _, second = said.partition(". ")
    assert len(first) <= MOST < len(said)
    assert [*first.split("; "), *second.split("; ")] == [
        *clauses[:5], clauses[5].capitalize(), *clauses[6:], "the rest",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("first", "more", "said"),
    [
        (["a"], [], "a"),
        (["a", "b"], [], "a; b"),
        (["a", "b"], ["c", "d"], "a; b. C; d"),
    ],
)
def test_short_clauses(first: list[str], more: list[str], said: str) -> None:
    """What fits is left as it is."""
    assert compose(first, more) == said
