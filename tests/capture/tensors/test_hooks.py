"""The user's hooks around operations: their arguments, and what they may do."""

from __future__ import annotations

from typing import Any

import pytest
from torch.distributed import ProcessGroup

from otel_torchdist.capture.core.calls.call import GroupState
from otel_torchdist.capture.core.calls.schemas import collective_schemas
from otel_torchdist.capture.core.torch_api import Patches
from otel_torchdist.capture.tensors.choice import Observers, given_hooks, load_hooks
from otel_torchdist.capture.tensors.hooks import Hooks
from otel_torchdist.capture.tensors.observed import ObservedCalls
from otel_torchdist.model.names import GroupName
from tests.support.launch.jobs import Job, Jobs


@pytest.fixture(scope="module")
def job(jobs: Jobs) -> Job:
    """Two ranks."""
    return jobs.run("hooked", 2)


def part_of(job: Job, rank: int, name: str) -> dict[str, Any]:
    """Return the report of one part of the worker."""
    [line] = [line for line in job.ranks[rank].lines() if line["part"] == name]
    return line


def calls(line: dict[str, Any], when: str) -> list[tuple[str, list[float]]]:
    """Return operations and the first elements of their tensors."""
    return [(one["operation"], one["firsts"]) for one in line["seen"] if one["when"] == when]


def test_inputs_and_outputs(job: Job) -> None:
    """Each operation calls the hook before with the tensors it sends, and the hook after with the received ones."""
    first, second = (part_of(job, rank, "every_route") for rank in range(2))
    assert calls(first, "before") == [
        ("all_reduce", [1.0]),
        ("all_gather", [3.0]),
        ("all_reduce", [3.0]),
        ("broadcast", []),  # the other rank is the root
        ("send", [6.0]),
        ("all_reduce", [1.0]),
        ("barrier", []),
    ]
    assert calls(second, "before")[3:5] == [("broadcast", [6.0]), ("recv", [])]
    assert calls(first, "after") == [
        ("all_reduce", [3.0]),
        ("all_gather", [3.0, 3.0]),
        ("all_reduce", [6.0]),
        ("broadcast", [6.0]),
        ("send", []),
        ("all_reduce", [1.0]),
        ("barrier", []),
    ]
    assert calls(second, "after")[4] == ("recv", [6.0])


def test_described_as_on_the_tape(job: Job) -> None:
    """Operation, group, sequence number, peer and call site equal those of the record, and so of the span."""
    for rank in range(2):
        line = part_of(job, rank, "every_route")
        [tape] = [tape for tape in job.tapes if tape.identity.rank == rank]
        records = [one for one in tape.operations if line["first"] <= one.raw.number < line["end"]]
        hooked = [one for one in line["seen"] if one["when"] == "before"]
        assert len(records) == len(hooked)
        for record, one in zip(records, hooked, strict=True):
            assert (record.name, record.raw.sequence, record.raw.peer) == (
                one["operation"], one["sequence"], one["peer"],
            )  # fmt: skip
            assert record.function == one["function"] == "every_route"
            assert (one["rank"], one["ranks"], one["group"]) == (rank, [0, 1], "default_pg")


def test_changed_inputs_are_sent(job: Job) -> None:
    """Values that a hook writes into the inputs arrive at all ranks."""
    for rank in range(2):
        assert part_of(job, rank, "changed")["values"] == [41.0] * 3


def test_what_a_hook_raises_reaches_the_program(job: Job) -> None:
    """A hook's exception is raised at the call or the wait. An operation that was not issued is not recorded."""
    for rank in range(2):
        raised, line = part_of(job, rank, "raised")["found"], part_of(job, rank, "raises")
        first = raised[0][1]
        assert raised == [["all_reduce", first], ["all_reduce", first], ["all_reduce", first + 1]]
        assert line["end"] - line["first"] == 3
        assert line["seen"][-1]["sequence"] == first + 2


def test_a_hook_may_communicate(job: Job) -> None:
    """Operations that a hook issues are recorded, and call no hook."""
    for rank in range(2):
        line = part_of(job, rank, "nested")
        assert line["end"] - line["first"] == 2
        assert calls(line, "before") == [("all_reduce", [1.0])]


def test_coalesced_operations(job: Job) -> None:
    """Hooks are called before a coalesced block is issued, and after the wait for it."""
    line = part_of(job, 0, "coalesced")
    assert calls(line, "before") == [("all_reduce_coalesced", [1.0, 1.0])]
    assert calls(line, "after") == [("all_reduce_coalesced", [2.0, 2.0])]


def test_outputs_of_ddp(job: Job) -> None:
    """If C++ waits, hooks get the reduced bucket before the optimizer's step, the same on both ranks."""
    both = [
        [line for line in job.ranks[rank].lines() if line["part"] == "ddp" and "reduced" in line] for rank in (0, 1)
    ]
    assert [len(lines) for lines in both] == [2, 2]
    for first, second in zip(*both, strict=True):
        assert first["reduced"]["when"] == "after"
        assert first["reduced"]["firsts"] == second["reduced"]["firsts"]
        assert first["reduced"]["operation"] == "all_reduce"


def test_operations_that_are_over_at_once(job: Job) -> None:
    """The end of an operation is not missed if the rank thread finds it before the caller has the Work."""
    assert [part_of(job, rank, "over_at_once")["ends"] for rank in range(2)] == [500, 500]


def test_filter(job: Job) -> None:
    """Hooks are called only for the operations, groups and ranks of their filter."""
    assert part_of(job, 0, "every_route")["filtered"] == []
    assert part_of(job, 1, "every_route")["filtered"] == ["broadcast"]


def test_training_is_bit_identical(job: Job) -> None:
    """With hooks that only read, parameters and random state after training with dropout equal those without hooks."""
    assert all(part_of(job, rank, "trained")["same"] for rank in range(2))


def test_nothing_is_called_after_uninstall(job: Job) -> None:
    """No hook is called after instrumentation was switched off."""
    assert all(part_of(job, rank, "uninstalled")["seen"] == [] for rank in range(2))


def test_without_hooks_nothing_is_in_the_way() -> None:
    """Without hooks for an operation, its kernel is not wrapped."""

    def kernel() -> None:
        """A kernel."""

    def find_group(group: ProcessGroup) -> GroupState | None:
        raise AssertionError(group)

    schemas = {schema.name: schema for schema in collective_schemas()}
    choices = Observers(), Observers((Hooks(operations=("send",)),))
    none, some = (ObservedCalls(choice, find_group, Patches(), lambda: None, lambda: None) for choice in choices)
    assert choices[0].is_empty
    assert none.observe(schemas["all_reduce"], kernel) is kernel
    assert none.observe_wait(kernel) is kernel
    assert some.observe(schemas["all_reduce"], kernel) is kernel
    assert some.observe(schemas["send"], kernel) is not kernel


@pytest.mark.parametrize(
    ("hooks", "rank", "expected"),
    [
        (Hooks(), 5, True),
        (Hooks(ranks=(3,)), 3, True),
        (Hooks(ranks=(3,)), 5, False),
        (Hooks(groups=("mesh_*",)), 5, True),
        (Hooks(groups=("tp", "7")), 5, True),
        (Hooks(groups=("tp",)), 5, False),
    ],
)
def test_filter_of_groups_and_ranks(hooks: Hooks, rank: int, expected: bool) -> None:
    """Patterns match the group's description and name. An empty filter matches everything."""
    assert hooks.wants(GroupName("7", "mesh_dp", (3, 5), 0, "gloo", True), rank) is expected


def look(call: object) -> None:
    """A hook that only reads."""


FOR_SENDS = Hooks(before_operation=look, operations=("send",))
NUMBER = 5


def test_hooks_from_the_environment(caplog: pytest.LogCaptureFixture) -> None:
    """Functions and `Hooks` are imported. Other values cause one warning with the reason."""
    here = __name__
    found = load_hooks([f"{here}:look", f"{here}:FOR_SENDS", f"{here}:NUMBER", f"{here}:missing", "no_such_module:x"])
    assert found == (Hooks(before_operation=look), FOR_SENDS)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 3
    assert all(message.startswith("OTEL_PYTHON_TORCHDIST_HOOKS='") for message in messages)
    assert "is neither Hooks nor a function" in messages[0]
    assert "AttributeError: module" in messages[1]
    assert "No module named 'no_such_module'" in messages[2]


def test_hooks_as_arguments(caplog: pytest.LogCaptureFixture) -> None:
    """`instrument` accepts one `Hooks`, several, and functions. Other values are ignored with a warning."""
    assert given_hooks({"hooks": FOR_SENDS}) == (FOR_SENDS,)
    assert given_hooks({"hooks": [FOR_SENDS], "after_operation": look}) == (FOR_SENDS, Hooks(after_operation=look))
    assert given_hooks({}) == ()
    assert caplog.records == []
    assert given_hooks({"hooks": 7, "before_operation": "look"}) == ()
    assert [record.getMessage() for record in caplog.records] == [
        "instrument(hooks=7) is not Hooks: it is not called",
        "instrument(before_operation='look') is not a function: it is not called",
    ]
