"""Each section measures what it claims to; it checks by itself that its calls were recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.readers.busy_tape import BusyTape
from benchmarks.results.recorded import operations_on_tapes, require_equal
from tests.benchmarks.running import KERNELS, TIMEOUT_S, Results

pytestmark = pytest.mark.timeout(TIMEOUT_S + 30)

VARIANTS = {"bare", "empty kernel", *KERNELS, "record_function", "naive, no export", "naive"}
SWITCHES = {"off", *KERNELS, "off again"}


@pytest.mark.thorough
@pytest.mark.rare
def test_every_variant_is_timed(results: Results) -> None:
    """Each call is timed in each variant and takes time; the clocks may spoil rounds on a busy machine."""
    collectives = results.written["per_call"]["collectives"]
    assert {name.partition(":")[0] for name in collectives} == {"fake", "gloo", "gloo, 2 ranks"}
    assert {name.partition(": ")[2] for name in collectives if name.startswith("fake")} == {
        "all_reduce",
        "all_reduce, async + wait",
        "all_gather_into_tensor",
        "broadcast",
        "barrier",
        "all_reduce, 8 coalesced",
        "send, recv",
    }
    for collective in collectives.values():
        assert set(collective["variants"]) == VARIANTS
        assert all(max(variant["rounds"]) > 0 for variant in collective["variants"].values())


@pytest.mark.thorough
@pytest.mark.rare
def test_calls_after_a_layer_are_timed(results: Results) -> None:
    """Two calls have figures for every variant; a step's share counts what we add to the first."""
    section = results.written["cold"]
    assert set(section["collectives"]) == {"all_reduce", "all_reduce, async + wait"}
    for collective in section["collectives"].values():
        assert set(collective) == VARIANTS
        assert all(min(variant["rounds"]) > 0 for variant in collective.values())
    of = section["collectives"]["all_reduce"]
    expected = {kernel: of[kernel]["added"]["median"] for kernel in KERNELS}
    assert {kernel: us for kernel, us in results.written["step_time"]["call_us"].items() if us} == expected


@pytest.mark.thorough
@pytest.mark.rare
def test_every_stage_of_reading_is_timed(results: Results) -> None:
    """A stage of the reader has a figure for each round."""
    reading = results.written["reading"]
    assert len(reading["stages"]) == 5
    assert all(len(stage["rounds"]) == reading["count"] for stage in reading["stages"].values())


@pytest.mark.thorough
@pytest.mark.rare
def test_calls_of_all_sizes_are_timed(results: Results) -> None:
    """Worlds and lists of tensors of every size have figures for every variant."""
    growth = results.written["growth"]
    sizes = growth["sizes"].values()
    assert {size["world_size"] for size in sizes if size["call"] == "all_reduce"} == {8, 512, 8192}
    assert {size["world_size"] for size in sizes if size["call"].startswith("all_gather")} == {8, 64, 512}
    assert sum(size["call"].startswith("all_reduce_coalesced") for size in sizes) == 3
    for size in sizes:
        assert set(size["rounds"]) == {"bare", "empty kernel", *KERNELS}
        assert all(len(rounds) == growth["rounds"] for rounds in size["rounds"].values())
        # On a busy machine, the time taken by other processes may exceed what a single round shows.
        assert all(max(rounds) > 0 for rounds in size["rounds"].values())


@pytest.mark.thorough
@pytest.mark.rare
def test_models_are_trained_with_and_without(results: Results) -> None:
    """Each model has blocks of all kinds in every round, and steps that communicate."""
    section = results.written["step_time"]
    assert set(section["models"]) == {"DDP", "FSDP2"}
    for model in section["models"].values():
        assert 2 <= len(model["rounds_ms"]) <= section["rounds"]
        assert all(set(one) == SWITCHES and min(one.values()) > 0 for one in model["rounds_ms"])
        assert model["collectives_per_step"] >= 5


@pytest.mark.thorough
@pytest.mark.rare
def test_backward_is_timed_with_the_flight_recorder_off_and_on(results: Results) -> None:
    """Each state of torch's flight recorder has rounds of every kind; the ranks check it, and the number of buckets."""
    recorders = results.written["ddp"]["recorders"]
    assert set(recorders) == {"off", "on"}
    for recorder in recorders.values():
        assert len(recorder["rounds"]) >= 2
        assert all(set(one) == SWITCHES and min(one.values()) > 0 for one in recorder["rounds"])


@pytest.mark.thorough
@pytest.mark.rare
def test_programs_are_run_in_every_way(results: Results) -> None:
    """The program of small collectives runs with each kernel, exported and not; an agent that exports takes time."""
    ways = results.written["small_collectives"]["ways"]
    kernels = {kernel.partition(" ")[0].lower() for kernel in KERNELS}
    exported = {f"{kernel}_exported" for kernel in kernels}
    assert set(ways) == {"without", "without_again", *kernels, *exported}
    for name, way in ways.items():
        assert all(run["wall_s"] > 0 and run["operations"] >= 100 for run in way["runs"])
        assert all((run["spans"] > 0) == (name in exported) for run in way["runs"])


@pytest.mark.thorough
@pytest.mark.rare
def test_start_is_compared_at_every_moment(results: Results) -> None:
    """There are figures of each process, without us, with us and beside ended jobs, up to the exit."""
    section = results.written["start"]
    assert set(section["moments"]) == {"first_init", "first_call", "init", "call", "destroy", "exit"}
    for ways in section["moments"].values():
        assert {way: len(of) for way, of in ways.items()} == dict.fromkeys(("off", "on", "beside"), section["rounds"])
        assert all(time > 0 for of in ways.values() for time in of)


@pytest.mark.thorough
@pytest.mark.rare
def test_own_threads_are_distinguished(results: Results) -> None:
    """With an external reader all that runs inside is capture's own thread; with a reader inside there is one."""
    section = results.written["own_threads"]
    assert section["spans_received"] > 0
    for rank in section["homes"]["outside"]:
        assert set(rank["threads"]) == {"otel-torchdist-watch"}
        assert rank["watch"]["median"] > 0
    for rank in section["homes"]["inside"]:
        assert {"otel-torchdist-watch", "otel-torchdist-reader", "native threads"} < set(rank["threads"])
        assert rank["reader"]["median"] > 0
        assert rank["export"]["median"] > 0


@pytest.mark.thorough
@pytest.mark.rare
def test_memory_is_compared_at_every_sample(results: Results) -> None:
    """There are figures for all processes after each number of operations; shared memory includes the tape."""
    section = results.written["memory"]
    looks = [*section["looks"], section["after_new_shapes"]]
    assert [look["operations"] for look in looks] == sorted({look["operations"] for look in looks})
    for look in looks:
        assert look["added"] == {kernel: look["private"][kernel] - look["private"]["off"] for kernel in KERNELS}
        assert set(look["shared"]) == KERNELS
        assert all(size >= 16_384 * 128 for size in look["shared"].values())


def test_a_missing_record_is_noticed(tmp_path: Path) -> None:
    """A benchmark that made one call more than is on its tape stops instead of showing figures."""
    tape = BusyTape(tmp_path)
    tape.write(10)
    found = operations_on_tapes(tmp_path)
    tape.writer.close()
    with pytest.raises(RuntimeError, match="figures mean nothing"):
        require_equal([found[0] + 1], found, "calls were recorded")
    require_equal(found, found, "calls were recorded")
