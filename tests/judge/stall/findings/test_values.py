"""Findings on the first rank with a non-finite value, on results that differ, and cases without a finding."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from otel_torchdist.judge.stall.findings.diverged import Diverged
from otel_torchdist.judge.stall.findings.non_finite import NonFinite
from otel_torchdist.judge.stall.findings.watch import ValueFinder
from otel_torchdist.judge.world.following.values import PARAMETERS
from otel_torchdist.model.calls import Channel, OperationId
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.rank_state.values import (
    ComparedParameters,
    NonFiniteInput,
    OutputChecksum,
    ParameterRange,
    RankValues,
    UnknownInput,
)
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.tape.records.numerics import mix_checksum, sum_checksums
from tests.support.worlds.fake_world import SECOND, START_NS, FakeWorld, group_of

GROUP = group_of(0, 1, 2, 3, description="default_pg")
CHANNEL = Channel(RecordKind.OPERATION, GROUP.key)
SITE = CallSiteName("train", "/home/user/train.py", 42)


def bad(
    sequence: int, step: int = 0, at_s: float = 0.0, is_nan: bool = True, onset: int | None = None
) -> NonFiniteInput:
    """Build an operation with a non-finite input."""
    at_ns, first = START_NS + round(at_s * SECOND), step if onset is None else onset
    return NonFiniteInput(OperationId(CHANNEL, sequence), "all_reduce", step, at_ns, is_nan, SITE, first)


def result(sequence: int, checksum: int, step: int = 0) -> OutputChecksum:
    """Build the result of an operation."""
    return OutputChecksum(OperationId(CHANNEL, sequence), "all_reduce", step, checksum)


def world_of(
    values: Mapping[int, RankValues], now_s: float = 10.0, step: int = 99, entered: int = 50, lagging: int = -1
) -> WorldSnapshot:
    """Build four ranks that have entered this number of operations; one may lag behind."""
    world = FakeWorld(4)
    snapshot = world.snapshot(now_s)
    ranks = {}
    for rank, view in snapshot.ranks.items():
        number = world.ranks[rank].enter(GROUP, 1.0, sequence=entered if rank != lagging else 1)
        world.ranks[rank].end(number, 1.1)
        progress = world.ranks[rank].progress
        ranks[rank] = dataclasses.replace(
            view,
            progress=progress,
            step=step if rank != lagging else 0,
            groups={GROUP.key: GROUP},
            values=values.get(rank, RankValues(are_all_checked=True)),
        )
    return dataclasses.replace(snapshot, ranks=ranks)


def checked(*facts: NonFiniteInput, skipped: tuple[int, ...] = ()) -> RankValues:
    """Mark all inputs of a rank as checked."""
    return RankValues(are_all_checked=True, non_finite=facts, skipped=skipped)


def test_the_first_rank_is_named() -> None:
    """The rank with a non-finite input while the others' inputs were finite is named. Later values are consequences."""
    later = tuple(bad(sequence, 3, 2.0 + sequence / 100) for sequence in (8, 9))
    values = {rank: checked(*later) for rank in range(4)} | {2: checked(bad(7, 3, 2.0), *later)}
    finder = ValueFinder()
    [found] = finder.find(world_of(values))
    assert isinstance(found, NonFinite)
    assert (found.ranks, found.others, found.operation_id.sequence, found.step) == ((2,), (0, 1, 3), 7, 3)
    assert found.text == (
        "rank 2 is the first with values that are not numbers (NaN) in the inputs of all_reduce (sequence 7, "
        "default_pg) in step 3, called in train at train.py:42; the inputs of ranks 0-1,3 were finite"
    )
    assert finder.find(world_of(values, now_s=20.0)) == [], "reported once"


def test_parameters_of_the_message_are_named() -> None:
    """The parameter of the value is named if known, else the first and last possible parameter."""

    def described(*parameters: ParameterRange | None) -> str:
        facts = {2 + nth: checked(dataclasses.replace(bad(7), parameters=one)) for nth, one in enumerate(parameters)}
        [found] = ValueFinder().find(world_of(facts))
        return found.text.partition(" were finite")[2]

    one = ParameterRange("layers.3.weight", "layers.3.weight", 1, 12)
    assert described(one) == "; the first such value belongs to layers.3.weight, one of 12 parameters in the message"
    assert described(ParameterRange("head.bias", "head.bias", 1, 1)) == "; the first such value belongs to head.bias"
    assert described(ParameterRange("b", "a", 12, 12)) == "; the message holds 12 parameters, b to a"
    assert described(one, None) == described(one), "of several ranks, the first one's"
    assert described(None) == ""


def test_several_ranks_at_once() -> None:
    """Two of four ranks are named together. If all have such inputs, no rank is the first."""
    [two] = ValueFinder().find(world_of({0: checked(bad(7)), 3: checked(bad(7))}))
    assert (two.ranks, two.others) == ((0, 3), (1, 2))
    assert two.text.startswith("ranks 0,3 are the first with values that are not numbers (NaN) in the ")
    [every] = ValueFinder().find(world_of({rank: checked(bad(7, is_nan=False)) for rank in range(4)}))
    assert (every.ranks, every.others) == ((0, 1, 2, 3), ())
    assert every.text == (
        "ranks 0-3 have infinite values in the inputs of all_reduce (sequence 7, default_pg) in step 0, called in "
        "train at train.py:42, and no rank is known to be first"
    )


def test_a_rank_that_does_not_check_is_not_called_finite() -> None:
    """If only samples are checked, a missing report does not mean finite inputs."""
    [found] = ValueFinder().find(world_of({1: checked(bad(7)), 0: RankValues(), 2: RankValues(), 3: RankValues()}))
    assert (found.ranks, found.others) == ((1,), ())


def test_members_are_waited_for() -> None:
    """A rank that has not entered the operation may also have a non-finite input: it is awaited for five seconds."""
    finder, values = ValueFinder(), {2: checked(bad(7))}
    assert finder.find(world_of(values, 10.0, lagging=1)) == []
    assert finder.find(world_of(values, 14.0, lagging=1)) == []
    [found] = finder.find(world_of(values, 15.5, lagging=1))
    assert (found.ranks, found.others) == ((2,), (0, 3))


def test_at_the_end_nothing_is_waited_for() -> None:
    """A run that is over is judged by the available data."""
    [found] = ValueFinder().find(world_of({2: checked(bad(7))}, lagging=1), is_last=True)
    assert found.ranks == (2,)


def test_a_scaler_that_recovers_is_no_finding() -> None:
    """A scaler skips the step and reduces the scale. It is reported only if it does not recover."""
    finder = ValueFinder()
    for step in range(1, 8):
        values = {rank: checked(bad(step, step), skipped=tuple(range(1, step + 1))) for rank in range(4)}
        assert finder.find(world_of(values, 10.0 + 2 * step)) == []
    values = {rank: checked(bad(8, 8), skipped=tuple(range(1, 9))) for rank in range(4)}
    [found] = finder.find(world_of(values, 40.0))
    assert found.text.endswith("; the gradient scaler has left out 8 steps in a row")


def test_something_new_after_a_calm() -> None:
    """A non-finite value is reported again long after an earlier one, but not shortly after it."""
    finder = ValueFinder()
    assert len(finder.find(world_of({1: checked(bad(7, 3))}, 10.0))) == 1
    assert finder.find(world_of({1: checked(bad(9, 20))}, 12.0)) == []
    assert len(finder.find(world_of({0: checked(bad(40, 70))}, 14.0))) == 1


def test_a_fast_job_that_stays_bad() -> None:
    """Hundreds of bad steps between two passes are still one finding."""
    finder = ValueFinder()
    assert len(finder.find(world_of({rank: checked(bad(7, 3)) for rank in range(4)}, 10.0))) == 1
    for now_s, step in ((12.0, 300), (14.0, 900)):
        values = {rank: checked(bad(7, 3), bad(step, step, onset=3)) for rank in range(4)}
        assert finder.find(world_of(values, now_s, step=step + 1, entered=1_000)) == []


def test_results_that_differ() -> None:
    """The minority is named. Of two halves or two ranks, neither is blamed."""
    values = {rank: RankValues(outputs=(result(5, 1), result(9, 7 if rank == 3 else 2, 4))) for rank in range(4)}
    finder = ValueFinder()
    [found] = finder.find(world_of(values))
    assert isinstance(found, Diverged)
    assert (found.ranks, found.others, found.step) == ((3,), (0, 1, 2), 4)
    assert found.text == (
        "rank 3 has another result of all_reduce (sequence 9, default_pg) in step 4 than ranks 0-2, which must be "
        "equal; what was received has been changed on its way or afterwards, or the ranks run different code"
    )
    assert finder.find(world_of(values, now_s=20.0)) == []
    halves = {rank: RankValues(outputs=(result(9, rank % 2),)) for rank in range(4)}
    [found] = ValueFinder().find(world_of(halves))
    assert (found.ranks, found.others) == ((0, 1, 2, 3), ())
    assert found.text.startswith("ranks 0-3 have different results of all_reduce (sequence 9, default_pg)")


def test_results_are_waited_for() -> None:
    """While a member's result is missing, no rank is named, for at most 5 s."""
    missing = {0: RankValues(), **{rank: RankValues(outputs=(result(9, rank // 3),)) for rank in (2, 3)}}
    known = {rank: RankValues(outputs=(result(9, rank // 3),)) for rank in range(4)}
    finder = ValueFinder()
    assert finder.find(world_of(missing, 10.0)) == []
    [found] = finder.find(world_of(known, 12.0))
    assert (found.ranks, found.others) == ((3,), (0, 1, 2))
    finder = ValueFinder()
    assert finder.find(world_of(missing, 10.0)) == []
    [found] = finder.find(world_of(missing, 15.5))
    assert (found.ranks, found.others) == ((2, 3), ())
    [found] = ValueFinder().find(world_of(missing, 10.0), is_last=True)
    assert found.ranks == (2, 3)


def test_results_of_other_ranks_are_waited_for() -> None:
    """The same if rank 0 is no member and does not know the group, and if no agent has described the group yet."""
    missing = {rank: RankValues(outputs=(result(9, rank // 3),)) for rank in (2, 3)}
    for knows in ((1, 2, 3), ()):
        world = world_of({**missing, 0: RankValues(), 1: RankValues()})
        ranks = {
            rank: dataclasses.replace(view, groups=view.groups if rank in knows else {})
            for rank, view in world.ranks.items()
        }
        world = dataclasses.replace(world, ranks=ranks)
        finder = ValueFinder()
        assert finder.find(world) == []
        [found] = finder.find(dataclasses.replace(world, taken_ns=world.taken_ns + 6 * SECOND))
        assert isinstance(found, Diverged)
        assert (found.ranks, found.group) == ((2, 3), GROUP if knows else None)


def parted(checksums: Mapping[int, tuple[int, ...]], names: tuple[str, ...] = ()) -> Diverged:
    """Return the findings on ranks whose parameters have these checksums."""
    values: dict[int, RankValues] = {}
    for rank, given in checksums.items():
        total, sums = sum_checksums([mix_checksum(one, nth) for nth, one in enumerate(given)])
        compared = ComparedParameters(len(given), sums, names if rank == 2 else ())
        operation_id = OperationId(Channel(RecordKind.NUMERICS, GROUP.key), 5)
        values[rank] = RankValues(outputs=(OutputChecksum(operation_id, PARAMETERS, 5, total, compared),))
    [found] = ValueFinder().find(world_of(values))
    assert isinstance(found, Diverged)
    return found


def test_parameters_that_differ_are_named() -> None:
    """One parameter is named, several are given as a range, and by index if names are unknown."""
    names, same = ("a", "b", "c", "d", "e"), (1, 2, 3, 4, 5)
    sentence = (
        "rank 3 has other parameters of default_pg than ranks 0-2 in step 5, since then or earlier:"
        " replicas must be equal; "
    )
    one = parted({0: same, 1: same, 2: same, 3: (1, 2, 3, 9, 5)}, names)
    assert one.text == sentence + "it is d, the only one of 5 that differs"
    unknown = parted({0: same, 1: same, 2: same, 3: (1, 2, 3, 9, 5)})
    assert unknown.text == sentence + "it is parameter 3, the only one of 5 that differs"
    two = parted({0: same, 1: same, 2: same, 3: (1, 2, 9, 9, 5)}, names)
    assert two.text == sentence + "several of the 2 from c to d differ"
    every = parted({0: same, 1: same, 2: same, 3: (9, 9, 9, 9, 9)}, names)
    assert every.text == sentence + "several of all 5 differ"
    single = parted({0: (1,), 1: (1,), 2: (1,), 3: (2,)}, ("a",))
    assert single.text == sentence + "it is a"


def test_ranks_with_different_parameters_that_differ() -> None:
    """If two ranks differ in different parameters, no parameter is named as the only one."""
    same = (1, 2, 3, 4)
    found = parted({0: same, 1: (9, 2, 3, 4), 2: same, 3: (1, 2, 9, 4)}, ("a", "b", "c", "d"))
    assert (found.ranks, found.others) == ((0, 1, 2, 3), ())
    assert found.text.endswith("; several of the 3 from a to c differ")


def test_findings_are_bounded() -> None:
    """The number of findings on a run is limited."""
    finder, count = ValueFinder(), 0
    for nth in range(100):
        values = {1: checked(bad(nth, 100 * nth)), 0: checked()}
        count += len(finder.find(world_of(values, 10.0 + 2 * nth, step=1_000_000)))
    assert count == 16


def test_healthy_ranks() -> None:
    """Equal results and finite inputs give no finding."""
    values = {rank: RankValues(are_all_checked=True, outputs=(result(5, 1), result(9, 2))) for rank in range(4)}
    assert ValueFinder().find(world_of(values)) == []


def some_checked(values: Mapping[int, RankValues], *ranks: int) -> dict[int, RankValues]:
    """Build ranks of which only some check their values."""
    return {rank: values.get(rank, checked()) if rank in ranks else RankValues() for rank in range(4)}


def test_of_some_ranks_none_is_the_first() -> None:
    """A rank that does not check its values may have had the first non-finite value, in any group."""
    [found] = ValueFinder().find(world_of(some_checked({2: checked(bad(7, 3))}, 0, 2)))
    assert isinstance(found, NonFinite)
    assert (found.ranks, found.others, found.are_first, found.unseen) == ((2,), (0,), False, (1, 3))
    assert found.text == (
        "rank 2 has values that are not numbers (NaN) in the inputs of all_reduce (sequence 7, default_pg) in step 3, "
        "called in train at train.py:42; the inputs of rank 0 were finite; the inputs of ranks 1,3 until then are not "
        "known, so no rank is known to be first"
    )


def test_a_rank_that_is_not_there_may_be_the_first() -> None:
    """A rank whose agent does not answer may have been the first."""
    world = world_of({2: checked(bad(7, 3))})
    del (ranks := {**world.ranks})[3]
    [found] = ValueFinder().find(dataclasses.replace(world, ranks=ranks), is_last=True)
    assert isinstance(found, NonFinite)
    assert (found.are_first, found.others, found.unseen) == (False, (0, 1), (3,))


def unknown(sequence: int, step: int, is_pending: bool) -> RankValues:
    """Add an operation with unknown inputs to a rank."""
    one = UnknownInput(OperationId(CHANNEL, sequence), step, is_pending)
    return RankValues(are_all_checked=True, unknown=(one,))


def test_a_device_is_waited_for() -> None:
    """An unreported value on a device may be the first: it is awaited for five seconds."""
    finder, values = ValueFinder(), {2: checked(bad(7, 3)), 1: unknown(6, 3, is_pending=True)}
    assert finder.find(world_of(values, 10.0)) == []
    [found] = ValueFinder().find(world_of(values | {1: checked(bad(6, 3, at_s=-1.0))}, 12.0))
    assert (found.ranks, found.others) == ((1,), (0, 2, 3))
    [found] = finder.find(world_of(values, 15.5))
    assert isinstance(found, NonFinite)
    assert (found.ranks, found.others, found.are_first, found.unseen) == ((2,), (0, 1, 3), False, (1,))


def test_what_was_not_looked_at_is_not_called_finite() -> None:
    """Unchecked inputs of the operation, or shortly before it, may be bad. Much earlier ones had no consequences."""
    for sequence, step, others, are_first in ((7, 3, (0, 3), False), (5, 2, (0, 1, 3), False), (1, 0, (0, 1, 3), True)):
        values = {2: checked(bad(7, 3)), 1: unknown(sequence, step, is_pending=False)}
        [found] = ValueFinder().find(world_of(values))
        assert isinstance(found, NonFinite)
        assert (found.ranks, found.others, found.are_first) == ((2,), others, are_first)


def test_a_majority_is_one_of_all_members() -> None:
    """Two of three known results are no majority of four members: the fourth could equal the third."""
    values = {rank: RankValues(outputs=(result(7, 5 if rank else 6),)) for rank in range(3)}
    [found] = ValueFinder().find(world_of(values), is_last=True)
    assert isinstance(found, Diverged)
    assert (found.ranks, found.others, found.unseen) == ((0, 1, 2), (), (3,))
    assert found.text.endswith(", or the ranks run different code; the results of rank 3 are not known")


def test_a_rank_that_is_not_read_yet_is_waited_for() -> None:
    """Two results do not show which is wrong, so the third rank, whose tape is read late, is awaited."""
    values = {rank: RankValues(outputs=(result(7, 6 if rank == 2 else 5),)) for rank in range(4)}
    whole = world_of(values, 11.0)
    early = world_of(values, 10.0)
    finder = ValueFinder()
    assert finder.find(dataclasses.replace(early, ranks={rank: early.ranks[rank] for rank in (1, 2)})) == []
    [found] = finder.find(whole)
    assert isinstance(found, Diverged)
    assert (found.ranks, found.others, found.unseen) == ((2,), (0, 1, 3), ())
