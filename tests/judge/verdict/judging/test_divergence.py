"""The lines at which the call paths of mismatched ranks diverge, and the calls that ranks left out."""

import dataclasses

import pytest

from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.judge.verdict.wording.sentence import describe_verdict
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from tests.support.worlds.fake_world import FakeWorld, group_of
from tests.support.worlds.judging import the_verdict

EVERYBODY = group_of(0, 1, 2, description="default_pg")
Frames = tuple[CallSiteName, ...]


def at(*lines: str) -> Frames:
    """Build frames from `function:line`, innermost first, in one file."""
    split = (line.split(":") for line in lines)
    return tuple(CallSiteName(function, "/home/ada/train.py", int(line)) for function, line in split)


def verdict_of(usual: list[Frames], odd: list[Frames], odd_rank: int = 2) -> Verdict:
    """Let ranks call an operation from these lines in turn; the last call of the odd rank has a different shape."""
    world = FakeWorld(3)
    for rank in range(3):
        calls = odd if rank == odd_rank else usual
        for place, frames in enumerate(calls):
            is_last = place == len(calls) - 1
            shape = (8,) if is_last and rank == odd_rank else (16,)
            number = world.ranks[rank].enter(EVERYBODY, 1.0 + place, frames=frames, shape=shape)
            if not is_last:
                world.ranks[rank].end(number, 1.1 + place)
    return the_verdict(world.snapshot(25.0))


def lead_of(verdict: Verdict) -> str:
    """Return the first sentence."""
    return describe_verdict(verdict, 10).partition(". ")[0]


EVALUATE = at("evaluate:59", "main:83"), at("evaluate:61", "main:83")


def test_call_that_was_left_out() -> None:
    """A rank at a later line of the same function has left out the others' call, which is stated before shapes."""
    verdict = verdict_of([at("main:70"), EVALUATE[0]], [at("main:70"), EVALUATE[1]])
    assert (verdict.kind, verdict.ranks) == (VerdictKind.MISMATCHED, (2,))
    assert describe_verdict(verdict, 10) == (
        "rank 2 is in all_reduce at evaluate, train.py:61, where ranks 0-1 are in all_reduce at evaluate, train.py:59, "
        "which rank 2 has left out; 3 of 3 ranks wait. "
        "This has blocked all_reduce (sequence 2, default_pg) for 10.0 s; "
        "the shape differs: 16 elements on ranks 0-1, 8 elements on rank 2"
    )


def test_call_that_the_others_have_left_out() -> None:
    """A rank at an earlier line has made an additional call: it has left out nothing."""
    verdict = verdict_of([at("main:70"), EVALUATE[1]], [at("main:70"), EVALUATE[0]])
    assert lead_of(verdict) == (
        "rank 2 is in all_reduce at evaluate, train.py:59, where ranks 0-1 are in all_reduce at evaluate, train.py:61; "
        "3 of 3 ranks wait"
    )


def test_several_calls_from_one_line() -> None:
    """A metric gathers several tensors from one line: the call left out is found where the paths diverge."""
    verdict = verdict_of([at("main:70"), EVALUATE[0], EVALUATE[0]], [at("main:70"), EVALUATE[1], EVALUATE[1]])
    assert "where ranks 0-1 are in all_reduce at evaluate, train.py:59, which rank 2 has left out" in lead_of(verdict)


def test_several_functions_of_a_library_from_one_line() -> None:
    """A library's metric gathers sizes and values in different functions: the paths diverge at the first."""
    parts = [
        tuple(dataclasses.replace(frame, through=through) for frame in frames)
        for frames in (at("evaluate:60"), at("evaluate:61"))
        for through in ("torchmetrics.gather_sizes", "torchmetrics.gather_values")
    ]
    verdict = verdict_of([at("main:70"), *parts[:2]], [at("main:70"), *parts[2:]])
    assert "where ranks 0-1 are in all_reduce at evaluate, train.py:60, which rank 2 has left out" in lead_of(verdict)


def test_calls_that_follow_are_the_same_ones_shifted() -> None:
    """The call left out may be some calls back, if later calls matched by chance."""
    lines = [at(f"step:{line}", "main:9") for line in (10, 11, 12, 13, 14)]
    verdict = verdict_of(lines[:4], [lines[0], *lines[2:]])
    assert lead_of(verdict) == (
        "rank 2 is in all_reduce at step, train.py:14, where ranks 0-1 are in all_reduce at step, train.py:13: "
        "rank 2 has left out all_reduce at step, train.py:11; 3 of 3 ranks wait"
    )


def test_lines_that_differ_as_they_should() -> None:
    """Calls from different lines that matched before, such as a branch for one rank, were not left out."""
    before = at("save:20", "main:9"), at("save:22", "main:9")
    verdict = verdict_of([before[0], EVALUATE[0]], [before[1], EVALUATE[1]])
    assert "which rank 2 has left out" in lead_of(verdict)
    assert "save" not in describe_verdict(verdict, 10)


def test_callers_of_a_helper() -> None:
    """If all ranks call one helper, the first callers that differ are named. A loop's next iteration is later."""
    norms = [at("SyncNorm.forward:28", f"Encoder.forward:{line}", "train:61") for line in (44, 47)]
    verdict = verdict_of([*norms, norms[0], norms[1]], [*norms, norms[0], norms[0]], odd_rank=1)
    assert lead_of(verdict) == (
        "rank 1 is in all_reduce at Encoder.forward, train.py:44, where ranks 0,2 are in all_reduce at "
        "Encoder.forward, train.py:47, which rank 1 has left out; 3 of 3 ranks wait"
    )


BROADCAST, REDUCE = at("load:15", "main:21"), at("reduce:14", "validate:23", "fit:32")


@pytest.mark.parametrize(
    ("usual", "one_more"),
    [
        ([BROADCAST, BROADCAST, at("main:22")], BROADCAST),
        ([at("fit:30"), at("fit:30"), REDUCE, REDUCE, at("fit:30")], REDUCE),
        ([at("step:9"), at("step:9"), at("gather:5"), at("gather:5"), at("step:9")], at("gather:5")),
    ],
    ids=["first time", "later rounds", "functions without a common caller"],
)
def test_call_too_many(usual: list[Frames], one_more: Frames) -> None:
    """A rank whose helper makes an additional call has left out nothing."""
    verdict = verdict_of(usual, [*usual[:-1], one_more])
    assert verdict.ranks == (2,)
    assert "left out" not in describe_verdict(verdict, 10)


def test_two_lines_of_a_helper() -> None:
    """If a helper makes several calls, its callers are named, not its lines."""
    odd, usual = at("gather:5", "evaluate:63", "main:9"), at("gather:7", "evaluate:61", "main:9")
    verdict = verdict_of([at("main:7"), usual], [at("main:7"), odd])
    assert "at evaluate, train.py:63, where ranks 0-1 are in all_reduce at evaluate, train.py:61" in lead_of(verdict)


def test_early_return_below_a_trainer() -> None:
    """A rank that has returned early from a trainer's step is in the trainer's next call."""
    fit = at("<module>:72")
    flag, step = (
        tuple(dataclasses.replace(frame, through="trainer.flag") for frame in fit),
        at("step:50", "<module>:72"),
    )
    rounds = [flag, step, fit]
    verdict = verdict_of([*rounds, flag, step], [*rounds, flag, flag], odd_rank=1)
    assert lead_of(verdict) == (
        "rank 1 is in all_reduce at <module>, train.py:72, where ranks 0,2 are in all_reduce at step, train.py:50, "
        "which rank 1 has left out; 3 of 3 ranks wait"
    )
    assert "in <module> it is called by trainer's flag" in describe_verdict(verdict, 10)


def test_functions_of_libraries_in_one_line() -> None:
    """If all ranks share one line of the program, the trainer's functions distinguish them."""
    fit = at("main:29")
    throughs = "accelerate.Accelerator.backward", "transformers.distributed_broadcast_scalars"
    usual, odd = (tuple(dataclasses.replace(frame, through=through) for frame in fit) for through in throughs)
    verdict = verdict_of([usual, usual], [usual, odd])
    assert lead_of(verdict) == (
        "rank 2 is in all_reduce of transformers' distributed_broadcast_scalars, where ranks 0-1 are in all_reduce of "
        "accelerate's Accelerator.backward, all called at main, train.py:29; 3 of 3 ranks wait"
    )
    assert "it is called by" not in describe_verdict(verdict, 10)


def test_same_line() -> None:
    """If all ranks call from the same line, the differing values are stated with that line."""
    verdict = verdict_of([at("main:70"), EVALUATE[0]], [at("main:70"), EVALUATE[0]])
    assert lead_of(verdict) == (
        "rank 2 has shape 8 elements where ranks 0-1 have 16 elements in all_reduce (sequence 2, default_pg) "
        "at evaluate, train.py:59, and the operation has been blocked for 10.0 s; 3 of 3 ranks wait"
    )


def test_units_of_fsdp() -> None:
    """FSDP calls all units from one line: the unit names distinguish the calls."""
    world = FakeWorld(3)
    for rank in range(3):
        world.ranks[rank].label = f"FSDP layers.{3 if rank == 1 else 2}"
        shape = (8,) if rank == 1 else (16,)
        world.ranks[rank].enter(EVERYBODY, 1.0, "all_gather_into_tensor", shape=shape, frames=at("train:42"))
    assert lead_of(the_verdict(world.snapshot(25.0))).startswith(
        "rank 1 is in all_gather_into_tensor (FSDP layers.3) at train, train.py:42, where ranks 0,2 are in "
        "all_gather_into_tensor (FSDP layers.2) at train, train.py:42"
    )


def test_unit_that_was_left_out() -> None:
    """FSDP calls its units in the order of earlier iterations: a rank at a later unit has left one out."""
    world = FakeWorld(3)
    for rank in range(3):
        units = [1, 2, 3, 4, 1, 3 if rank == 1 else 2]
        for place, unit in enumerate(units):
            world.ranks[rank].label = f"FSDP layers.{unit}"
            number = world.ranks[rank].enter(EVERYBODY, 1.0 + place, shape=(unit,), frames=at("train:42"))
            if place < len(units) - 1:
                world.ranks[rank].end(number, 1.1 + place)
    assert lead_of(the_verdict(world.snapshot(25.0))).startswith(
        "rank 1 is in all_reduce (FSDP layers.3) at train, train.py:42, where ranks 0,2 are in "
        "all_reduce (FSDP layers.2) at train, train.py:42, which rank 1 has left out"
    )


@pytest.mark.parametrize("frames", [(), at("main:70")])
def test_two_ranks(frames: Frames) -> None:
    """Without a majority, no call counts as left out."""
    world = FakeWorld(2)
    pair = group_of(0, 1, description="default_pg")
    for rank in range(2):
        world.ranks[rank].end(world.ranks[rank].enter(pair, 1.0, frames=frames), 1.1)
        world.ranks[rank].enter(pair, 2.0, shape=(8 + rank,), frames=EVALUATE[rank] if frames else ())
    said = lead_of(the_verdict(world.snapshot(25.0)))
    if frames:
        assert said.startswith(
            "ranks are in different calls: rank 0 is in all_reduce at evaluate, train.py:59, "
            "rank 1 is in all_reduce at evaluate, train.py:61"
        )
    else:
        assert said.startswith(
            "ranks disagree on the shape of all_reduce (sequence 2, default_pg) at train, train.py:42: "
        )
