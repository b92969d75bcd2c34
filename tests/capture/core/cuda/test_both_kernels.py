"""Operations on a simulated device, issued through torch's dispatcher and recorded by both kernels."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from statistics import median

import pytest

from otel_torchdist.model.kinds import Flag
from tests.support.launch.jobs import Job, Jobs
from tests.support.native.native_library import KERNELS, simulated_library
from tests.support.tapes.recorded import Recorded, RecordedTape

MS = 1_000_000
CLOCK_ERROR_NS = 3 * MS
NATIVELY = ("synchronous", "waited", "named_by_memory", "never_waited", "messages", "on_other_device")


@dataclass(frozen=True)
class Run:
    """What a kernel has made of the program.

    Attributes:
        tape: The tape.
        in_python: By phase, how many calls the kernel in Python got, and how many there were.
        kernels: Name, end and duration of what ran on the device.
        log: What was logged.
    """

    tape: RecordedTape
    in_python: dict[str, tuple[int, int]]
    kernels: list[tuple[str, int, int]]
    log: str

    def phase(self, name: str) -> list[Recorded]:
        """The operations of a phase."""
        counts = [count for _, count in self.in_python.values()]
        first = sum(counts[: list(self.in_python).index(name)])
        return self.tape.operations[first : first + self.in_python[name][1]]


@pytest.fixture(scope="module")
def runs(jobs_of: dict[str, Jobs]) -> dict[str, Run]:
    """The program, recorded by each kernel."""
    return {kernel: run_with(jobs) for kernel, jobs in jobs_of.items()}


@pytest.fixture(params=KERNELS)
def run(request: pytest.FixtureRequest, runs: dict[str, Run]) -> Run:
    """The program, recorded by one of them."""
    return runs[request.param]


def run_with(jobs: Jobs) -> Run:
    """Run the program."""
    job = jobs.run("on_device", 1, str(simulated_library()))
    [rank], [tape] = job.ranks, job.tapes
    said = json.loads(rank.out)
    return Run(tape, said["phases"], [tuple(one) for one in said["kernels"]], rank.err)


def test_same_facts(runs: dict[str, Run]) -> None:
    """Both kernels record every call once, with the same facts."""
    python, native = (runs[kernel].tape.operations for kernel in KERNELS)
    assert len(python) == sum(count for _, count in runs["python"].in_python.values())
    for expected, found in zip(python, native, strict=True):
        assert facts_of(found) == facts_of(expected)


def facts_of(operation: Recorded) -> tuple[object, ...]:
    """Return the fields of a record that do not depend on time or kernel."""
    raw, signature = operation.raw, operation.signature
    return (
        *(operation.name, operation.group.ranks, operation.line, signature.shapes, signature.dtypes, signature.device),
        *(raw.step, raw.sequence, raw.peer, raw.tag, raw.message_bytes, raw.flags & ~Flag.REDUCE_OP_UNREAD, raw.phase),
        *(operation.failure, raw.returned_ns is None),
    )


@pytest.mark.parametrize("phase", NATIVELY)
def test_what_repeats_is_recorded_natively(runs: dict[str, Run], phase: str) -> None:
    """Python records the first two calls from a line, and calls that end a step. The library records the others."""
    lines = 2 if phase == "messages" else 1
    in_python, count = runs["native"].in_python[phase]
    assert in_python <= 2 * lines + 1 < count
    assert runs["python"].in_python[phase] == [count, count]


@pytest.mark.parametrize(
    ("phase", "hows"),
    [
        ("synchronous", {"EVENT"}),
        ("never_waited", {"WATCHDOG"}),
        ("messages", {"WATCHDOG"}),
        ("on_other_device", {"EVENT"}),
        ("refused", {"FAILED"}),
        ("in_graph", {"UNTRACKED"}),
        ("device_fails", {"UNTRACKED"}),
    ],
)
def test_how_ends_are_known(run: Run, phase: str, hows: set[str]) -> None:
    """Ends come from the device's events if there are any, else from the watchdog.

    Unknown ends are marked as unknown.
    """
    assert {operation.how for operation in run.phase(phase)} == hows


def test_waits_are_seen_natively(runs: dict[str, Run]) -> None:
    """The library observes the end of a wait for a Work. Python learns of that end only from the watchdog."""
    assert {operation.how for operation in runs["python"].phase("waited")} == {"WATCHDOG"}
    assert "EVENT" in [operation.how for operation in runs["native"].phase("waited")]


def test_waits_named_by_memory_are_seen(run: Run) -> None:
    """Waits that name memory give the end of an operation, unless the host was too slow to enqueue the wait."""
    hows = {operation.how for operation in run.phase("named_by_memory")}
    assert "EVENT" in hows
    assert hows <= {"EVENT", "WATCHDOG"}


@pytest.mark.parametrize("phase", ["synchronous", "named_by_memory", "on_other_device"])
def test_times_are_the_devices(run: Run, phase: str) -> None:
    """Most starts and ends are the device's, within the error of its clock. The host may lose the processor."""
    first = run.tape.operations.index(run.phase(phase)[0])
    started, ended = [], []
    for operation, (_, ended_ns, lasts_ns) in zip(run.phase(phase), run.kernels[first:], strict=False):
        assert operation.raw.completed_ns is not None
        assert operation.raw.started_ns is not None
        ended.append(operation.raw.completed_ns - ended_ns)
        started.append(operation.raw.started_ns - (ended_ns - lasts_ns))
    assert abs(median(ended)) < CLOCK_ERROR_NS
    assert abs(median(started)) < CLOCK_ERROR_NS


def test_messages_are_counted_each_way(run: Run) -> None:
    """Sends and receives have separate sequence numbers without gaps, whichever kernel records each message."""
    messages = run.phase("messages")
    for name in ("send", "recv"):
        numbers = [message.raw.sequence for message in messages if message.name == name]
        assert numbers == [*range(1, len(numbers) + 1)]


def test_refused_calls_keep_no_place(run: Run) -> None:
    """The sequence number of a refused call is reused by the next operation."""
    before, after = run.phase("on_other_device")[-1], run.phase("in_graph")[0]
    assert after.raw.sequence == before.raw.sequence + 1
    assert {refused.raw.sequence for refused in run.phase("refused")} == {after.raw.sequence}


def test_a_failed_device_is_one_warning(run: Run) -> None:
    """After a device error there is one warning, and calls continue without being followed."""
    assert run.log.count("no longer follows operations on CUDA devices") == 1
    assert "cudaErrorLaunchFailure" in run.log


def test_operations_overlap_as_on_the_device(runs: dict[str, Run]) -> None:
    """Operations of one queue do not overlap."""
    for before, after in itertools.pairwise(runs["native"].phase("synchronous")):
        assert before.raw.completed_ns is not None
        assert after.raw.started_ns is not None
        assert after.raw.started_ns >= before.raw.completed_ns - MS // 10


@pytest.fixture(scope="module")
def job(jobs: Jobs) -> Job:
    """A rank on a simulated device."""
    return jobs.run("synchronized", 1, str(simulated_library()))


def test_where_devices_are_synchronized(job: Job) -> None:
    """Devices are synchronized twice per collective, not for messages, coalesced blocks, graphs and CPU operations."""
    counts = job.ranks[0].lines()[-1]["counts"]
    assert counts == {
        "computation_before": 2,
        "asynchronous": 2,
        "messages": 0,
        "on_host": 0,
        "in_graph": 0,
        "coalesced": 0,
    }


def test_what_it_measures(job: Job) -> None:
    """With synchronization, an operation's time excludes earlier work on the device: it takes 5 ms, not 405 ms."""
    [tape] = job.tapes
    assert tape.identity.synchronized
    operation = tape.operations[0].raw
    assert operation.completed_ns is not None
    assert 4e6 < operation.completed_ns - operation.entered_ns < 300e6
