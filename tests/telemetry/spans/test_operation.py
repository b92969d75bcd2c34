"""The span of one operation: everything that its record has, how it ended, and its times on a device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

from otel_torchdist.model.ids import operation_span_id
from otel_torchdist.model.kinds import Flag, How, Phase, RecordKind, TapeState
from otel_torchdist.model.names import (
    OTHER,
    CallPathName,
    CallSiteName,
    GroupName,
    LabelKind,
    LabelName,
    SignatureName,
    pack_label,
)
from otel_torchdist.tape.layout import Word
from otel_torchdist.telemetry import semconv
from tests.support.tapes.fake_tape import RUN, SECOND, ClockedTape
from tests.telemetry.spanned_rank import Rank, group_key

_OF_LABELS = {
    *(semconv.CALLER, semconv.FSDP_UNIT, semconv.DDP_BUCKET),
    *(semconv.PIPELINE_STAGE, semconv.PIPELINE_DIRECTION, semconv.PIPELINE_MICROBATCH),
}


def test_an_operation_shows_everything_in_its_record(rank: Rank) -> None:
    """Every attribute has its documented name and type; the time for which the thread was blocked adds up."""
    number = rank.tape.enter(Flag.ASYNC)
    rank.tape.pass_s(0.001)
    rank.tape.mark(number, Word.RETURNED)
    rank.tape.pass_s(1)
    rank.tape.mark(number, Word.WAIT_ENTERED)
    rank.tape.pass_s(0.5)
    rank.tape.end(number, How.WAIT)
    [span] = rank.end_step()
    assert span.name == "all_reduce"
    assert span.error is None
    assert span.attributes == {
        semconv.OPERATION: "all_reduce",
        semconv.RANK: 2,
        semconv.RUN: RUN,
        semconv.REDUCE_OP: "sum",
        semconv.TENSOR_SHAPES: ["64x128", "scalar"],
        semconv.TENSOR_DTYPES: ["float32"],
        semconv.TENSOR_DEVICE: "cpu",
        semconv.TENSOR_COUNT: 2,
        semconv.GROUP_HASH: group_key(rank),
        semconv.GROUP_SIZE: 4,
        semconv.GROUP_DESCRIPTION: "default_pg",
        semconv.CODE_FUNCTION: "train",
        semconv.CODE_FILE: "/home/user/train.py",
        semconv.CODE_LINE: 42,
        semconv.CALLER: "DDP",
        semconv.SEQUENCE: 1,
        semconv.STEP: 0,
        semconv.MESSAGE_SIZE: 32_768,
        semconv.ASYNC: True,
        semconv.SYNC_DURATION: pytest.approx(0.501),
        semconv.COMPLETION: "wait",
        semconv.COMPLETION_RESOLUTION: 0.0,
    }
    assert isinstance(span.attributes[semconv.SYNC_DURATION], float)
    assert span.attributes[semconv.ASYNC] is True


@pytest.mark.parametrize(
    ("phase", "shown"),
    [(Phase.BACKWARD, "backward"), (Phase.OUTSIDE_BACKWARD, "outside_backward"), (Phase.UNKNOWN, None)],
)
def test_phase(rank: Rank, phase: Phase, shown: str | None) -> None:
    """Whether a backward pass made the call is shown where it is known."""
    rank.tape.operation(phase=phase)
    [span] = rank.end_step()
    assert span.attributes.get(semconv.PHASE) == shown


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        (Flag.ON_DEVICE, True),
        (Flag.ON_DEVICE | Flag.ASYNC, True),
        (Flag.ON_DEVICE | Flag.POINT_TO_POINT, None),
        (Flag.ON_DEVICE | Flag.COALESCED, None),
        (Flag(0), None),
    ],
)
def test_synchronized_timing(make_tape: Callable[..., ClockedTape], flags: Flag, shown: bool | None) -> None:
    """Where the device was synchronized around an operation, its span says so; no other span does."""
    tape = make_tape(synchronized=True)
    tape.agree()
    rank = Rank(tape)
    rank.tape.operation(flags=flags)
    [span] = rank.end_step()
    assert span.attributes.get(semconv.SYNCHRONIZED) is shown


def test_what_led_to_a_call(rank: Rank) -> None:
    """The frames of the program, innermost first, those of libraries as one entry; and whether there are too many."""
    names = rank.tape.writer.names
    site = names.intern(CallSiteName("train", "/home/user/train.py", 42))
    between, outer = names.intern("… lightning, torch …"), names.intern(CallSiteName("main", "/home/user/run.py", 7))
    path = ["train.py:42 train", "… lightning, torch …", "run.py:7 main"]
    rank.tape.operation(call_site=names.intern(CallPathName(site, (between, outer))))
    rank.end_step()
    rank.tape.operation(call_site=names.intern(CallPathName(site, (between, outer), varies=True)))
    first, second = rank.end_step()
    assert first.attributes[semconv.CALLER_PATH] == second.attributes[semconv.CALLER_PATH] == path
    assert semconv.CALLER_PATH_VARIES not in first.attributes
    assert second.attributes[semconv.CALLER_PATH_VARIES] is True


@pytest.mark.parametrize(("members", "largest"), [(4, 300), (100, 9_900)])
def test_uneven_exchange(rank: Rank, members: int, largest: int) -> None:
    """An uneven exchange shows what the rank receives and the largest part that it sends, in groups of any size."""
    rank.tape.operation(parts=[100 * member for member in range(members)], received=5_000)
    rank.tape.operation()
    rank.end_step()
    names = (semconv.MESSAGE_RECEIVED, semconv.MESSAGE_LARGEST_PART)
    shown = [tuple(span.attributes.get(name) for name in names) for span in rank.sink.operations]
    assert shown == [(5_000, largest), (None, None)]


@pytest.mark.parametrize(
    ("how", "resolution"),
    [
        (How.CALL, 0.0),
        (How.WAIT, 0.0),
        (How.POLL, 0.06),
        (How.EVENT, 0.001),
        (How.WATCHDOG, 0.12),
        (How.UNTRACKED, None),
        (How.ABANDONED, None),
    ],
)
def test_how_an_end_is_known_and_how_coarse(rank: Rank, how: How, resolution: float | None) -> None:
    """An end that is not known exactly is marked as such, and one that is unknown claims no resolution."""
    rank.tape.operation(how=how)
    [span] = rank.end_step()
    assert span.attributes[semconv.COMPLETION] == how.name.lower()
    assert span.attributes.get(semconv.COMPLETION_RESOLUTION) == resolution
    assert span.error is None


def test_an_operation_that_raised_is_an_error(rank: Rank) -> None:
    """The exception's type is in `error.type` and in the status."""
    rank.tape.end(rank.tape.enter(), How.FAILED, "DistBackendError")
    [span] = rank.end_step()
    assert span.error == "all_reduce raised DistBackendError"
    assert span.attributes[semconv.ERROR_TYPE] == "DistBackendError"


def test_point_to_point_rendezvous_and_what_is_not_known(rank: Rank) -> None:
    """Peer and tag are there for point-to-point only; a rendezvous has its operation's name; names may be missing."""
    names = rank.tape.writer.names
    send = names.intern(SignatureName("send", "", ((3,),), ("int64",), "cpu", 1))
    new_group = names.intern(SignatureName("new_group", "", (), (), "", 0))
    late = names.intern(GroupName("7", "", (0, 2), nth=1, backend="gloo", aligned=False))
    rank.tape.end(rank.tape.enter(Flag.POINT_TO_POINT, signature=send, peer=3, tag=9, group=late))
    rank.tape.end(rank.tape.enter(kind=RecordKind.RENDEZVOUS, signature=new_group, group=OTHER))
    rank.tape.end(rank.tape.enter(signature=OTHER, group=OTHER))
    sent, created, unknown = rank.end_step()
    assert (sent.name, sent.attributes[semconv.PEER], sent.attributes[semconv.TAG]) == ("send", 3, 9)
    assert sent.attributes[semconv.SEQUENCE_ALIGNED] is False
    assert semconv.GROUP_DESCRIPTION not in sent.attributes
    assert semconv.REDUCE_OP not in sent.attributes
    assert created.name == "new_group"
    assert not {semconv.TAG, semconv.PEER, semconv.GROUP_HASH, semconv.TENSOR_SHAPES} & set(created.attributes)
    assert unknown.name == semconv.OTHER


def test_a_bar_is_never_empty(rank: Rank) -> None:
    """An operation of no measurable length still lasts the microsecond that viewers can show."""
    rank.tape.operation(0)
    rank.end_step()
    assert {span.end_ns - span.start_ns for span in rank.sink.spans} == {1_000}


@pytest.mark.parametrize(
    ("state", "failure", "sentence"),
    [
        (TapeState.RUNNING, "", "all_reduce was still in progress when the process was gone"),
        (TapeState.FAILED, "ValueError", "all_reduce was still in progress when the process failed with ValueError"),
        (TapeState.FINISHED, "", "all_reduce was still in progress when the process ended"),
    ],
)
def test_operations_that_are_open_at_the_end_are_shown(
    tape: ClockedTape, state: TapeState, failure: str, sentence: str
) -> None:
    """Open operations end with the tape, as errors that state why, under the id that their span would have had."""
    rank = Rank(tape, ALWAYS_OFF if state is not TapeState.FINISHED else ALWAYS_ON)
    number = tape.enter()
    tape.pass_s(3)
    if state is not TapeState.RUNNING:
        tape.writer.finish(state, tape.writer.names.intern(failure) if failure else 0)
    rank.close()
    rank.spans.close(tape.now_ns)
    [span] = rank.sink.operations
    assert span.span_id == operation_span_id(tape.reader.identity.nonce, number)
    assert span.error == sentence
    assert span.attributes[semconv.COMPLETION] == "unknown"
    assert semconv.COMPLETION_RESOLUTION not in span.attributes
    assert span.end_ns - span.start_ns == 3 * SECOND


def test_an_open_operation_without_a_wait_is_not_an_error(rank: Rank) -> None:
    """A gloo send that is never waited for may stay open; that is not an error."""
    number = rank.tape.enter(Flag.ASYNC | Flag.END_BY_WAIT)
    rank.tape.pass_s(0.001)
    rank.tape.mark(number, Word.RETURNED)
    rank.close()
    [span] = rank.sink.operations
    assert span.error is None
    assert span.attributes[semconv.COMPLETION] == "unknown"


@pytest.mark.parametrize(("start", "resolution"), [(How.EVENT, 0.001), (How.WATCHDOG, 0.12), (How.POLL, 0.06)])
def test_times_on_a_device(rank: Rank, start: How, resolution: float) -> None:
    """How long an operation was in the device's queue, how long it ran on the device, and how exact that is."""
    number = rank.tape.enter(Flag.ON_DEVICE)
    rank.tape.pass_s(2)
    rank.tape.writer.mark(number, Word.STARTED, 2 * SECOND, start)
    rank.tape.pass_s(0.5)
    rank.tape.end(number, How.EVENT)
    [span] = rank.end_step()
    assert span.attributes[semconv.DEVICE_QUEUE_DURATION] == 2.0
    assert span.attributes[semconv.DEVICE_START_RESOLUTION] == resolution
    assert span.attributes[semconv.DEVICE_DURATION] == 0.5


def test_what_is_not_known_of_a_device_is_left_out(rank: Rank) -> None:
    """Without queries to the device there are no times of its own; on the host there never are."""
    number = rank.tape.enter(Flag.ON_DEVICE)
    rank.tape.writer.mark(number, Word.STARTED, 0, How.UNTRACKED)
    rank.tape.pass_s(0.1)
    rank.tape.end(number, How.UNTRACKED)
    rank.tape.operation(how=How.WAIT)
    rank.end_step()
    for span in rank.sink.operations:
        assert not [name for name in span.attributes if name.startswith("torchdist.device")]


def test_what_a_device_never_came_to_is_no_error(rank: Rank) -> None:
    """Of operations in the device's queue at the end only the one that it had begun was in progress."""
    begun = rank.tape.enter(Flag.ON_DEVICE)
    rank.tape.enter(Flag.ON_DEVICE)
    rank.tape.pass_s(0.5)
    rank.tape.writer.mark(begun, Word.STARTED, 1, How.EVENT)
    rank.close()
    errors = [span.error for span in rank.sink.operations]
    assert errors == ["all_reduce was still in progress when the process was gone", None]
    [in_progress, _] = rank.sink.operations
    assert semconv.DEVICE_DURATION not in in_progress.attributes


@pytest.mark.parametrize(
    ("label", "piece", "shown"),
    [
        (
            LabelName(LabelKind.FSDP, unit="layers.3"),
            0,
            {semconv.CALLER: "FSDP layers.3", semconv.FSDP_UNIT: "layers.3"},
        ),
        (LabelName(LabelKind.FSDP), 0, {semconv.CALLER: "FSDP root", semconv.FSDP_UNIT: "root"}),
        (LabelName(LabelKind.DDP), 3, {semconv.CALLER: "DDP", semconv.DDP_BUCKET: 2}),
        (
            LabelName(LabelKind.PIPELINE, stage=1, direction="fwd"),
            1,
            {
                semconv.CALLER: "pipeline stage 1, fwd",
                semconv.PIPELINE_STAGE: 1,
                semconv.PIPELINE_DIRECTION: "fwd",
                semconv.PIPELINE_MICROBATCH: 0,
            },
        ),
    ],
)
def test_labels(rank: Rank, label: LabelName, piece: int, shown: dict[str, object]) -> None:
    """What a library for parallel training calls is shown in words, and each part of it as an attribute."""
    rank.tape.label = pack_label(rank.tape.writer.names.intern(label), piece)
    rank.tape.operation()
    [span] = rank.end_step()
    assert {name: value for name, value in span.attributes.items() if name in _OF_LABELS} == shown


def test_dimensions_of_a_group_that_a_mesh_has_taken(rank: Rank) -> None:
    """Operations before the mesh have no dimensions, and those after it have, though the group's id is the same."""
    names = rank.tape.writer.names
    for dimensions in ((), ("dp", "fsdp")):
        if dimensions:
            group = rank.tape.reader.names.group(rank.tape.group)
            assert group is not None
            names.replace(rank.tape.group, dataclasses.replace(group, dimensions=dimensions))
            rank.tape.call_site = names.intern(CallSiteName("step", "/home/user/train.py", 43))
        rank.tape.operation()
        rank.end_step()
    assert [span.attributes.get(semconv.MESH_DIMENSIONS) for span in rank.sink.operations] == [None, ["dp", "fsdp"]]
