"""Which events of a profiler's trace are calls, and what is known of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from otel_torchdist.analysis.statistics.compute import statistics_of
from otel_torchdist.model.calls import OperationView
from otel_torchdist.model.kinds import Flag, How
from otel_torchdist.sources.profiles.groups import ProfiledGroups
from otel_torchdist.sources.profiles.history import gaps_in
from tests.sources.profiles.made import Format, MadeGroup, MadeTrace
from tests.sources.profiles.reading_traces import graph_in, histories, read

PAIR = {"default": MadeGroup("0", "default_pg", (0, 1))}


def trace_of(rank: int = 0, form: Format = Format.GROUPS, **options: Any) -> MadeTrace:
    """The trace of one of two ranks."""
    return MadeTrace(rank, 2, PAIR, form, **options)


def operations(folder: Path, *traces: MadeTrace) -> list[OperationView]:
    """The calls of the first of these traces."""
    for trace in traces:
        trace.write(folder)
    return list(histories(folder)[0].operations)


def test_a_barrier_is_one_call(tmp_path: Path) -> None:
    """Until 2024 a barrier contains the all_reduce that it is made of, to which its kernel belongs."""
    trace = trace_of()
    begun_us = trace.now_us
    trace.call("allreduce", "default", 1)
    trace.now_us = begun_us - 10
    barrier = trace.call("barrier", "default", 0, dtype="Byte", kernel="")
    trace.events[-2]["dur"] = 200  # the all_reduce lies within
    assert barrier["Collective name"] == "barrier"
    [view] = operations(tmp_path, trace)
    assert (view.name, view.record.message_bytes, view.record.how) == ("barrier", 0, How.EVENT)


def test_several_kernels_of_one_call(tmp_path: Path) -> None:
    """They last together from the first begin to the last end."""
    trace = trace_of()
    trace.call("all_to_all", "default", 64)
    trace.events.append({**trace.events[-1], "ts": trace.events[-1]["ts"] + 30})
    [view] = operations(tmp_path, trace)
    assert (view.record.completed_ns or 0) - (view.record.started_ns or 0) == 75_000


def test_coalesced_calls_have_no_times(tmp_path: Path) -> None:
    """What `batch_isend_irecv` launches belongs to no single call: each counts, and none is timed."""
    trace = trace_of(form=Format.POSITIONS)
    trace.call("send", "default", 16, peer=1, kernel="")
    trace.call("recv", "default", 16, peer=1, kernel="")
    found = operations(tmp_path, trace)
    assert [(view.name, view.record.peer, view.record.how) for view in found] == [
        ("send", 1, How.UNTRACKED),
        ("recv", 1, How.UNTRACKED),
    ]
    assert [row.timed for row in statistics_of(histories(tmp_path)).rows] == [0, 0]


def test_replays_of_cuda_graphs(tmp_path: Path) -> None:
    """A kernel that carries what the call was, and that no call of this trace has launched, is a call."""
    trace = trace_of()
    trace.call("allreduce", "default", 64)
    trace.events[-1]["args"]["External id"] = 0
    del trace.events[0]
    [view] = operations(tmp_path, trace)
    assert (view.name, view.record.message_bytes, view.record.how) == ("all_reduce", 256, How.EVENT)


def test_kernels_alone(tmp_path: Path) -> None:
    """Of traces before 2023 the names of kernels are left: operations and times, of no size and no known group."""
    trace = trace_of()
    for _ in range(3):
        trace.call("allreduce", "default", 64)
    trace.events = [event for event in trace.events if event["cat"] == "kernel"]
    for event in trace.events:
        event |= {"cat": "Kernel", "name": "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "args": {}}
    trace.has_config = False
    found = operations(tmp_path, trace)
    assert [(view.name, view.group) for view in found] == [("all_reduce", None)] * 3
    [row] = statistics_of(histories(tmp_path)).rows
    assert (row.timed, row.median_ns, row.size_class) == (3, 45_000, "unknown")
    lines = list(gaps_in(read(tmp_path).profiles, ProfiledGroups(read(tmp_path).profiles)))
    assert [line.partition(" calls")[0] for line in lines] == ["3 of 3", "3 of 3"]


def test_averages(tmp_path: Path) -> None:
    """A kernel's name may prove that it averages; that it sums is never proved, because NCCL shares kernels."""
    trace = trace_of()
    trace.call("allreduce", "default", 64, kernel="ncclKernel_AllReduce_RING_LL_PreMulSum_half")
    trace.call("allreduce", "default", 65, kernel="ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    found = operations(tmp_path, trace)
    assert [view.signature and view.signature.reduce_op for view in found] == ["avg", "?"]


def test_waits_and_communicators(tmp_path: Path) -> None:
    """Neither a wait nor the creation of a communicator is a call; the latter shows a group."""
    trace = trace_of(has_config=False)
    trace.call("init", "default", 0, dtype="Byte", kernel="")
    trace.wait("0")
    trace.write(tmp_path)
    [history] = histories(tmp_path)
    assert history.operations == ()
    assert [group.name.ranks for group in history.groups] == [(0, 1)]


def test_cut_lists(tmp_path: Path) -> None:
    """Members of more than 30 ranks follow from start and stride, or from the head of the trace."""
    ranks = tuple(range(1, 128, 2))
    groups = {"odd": MadeGroup("7", "mesh_dp", ranks)}
    for has_config in (False, True):
        for form in (Format.GROUPS, Format.POSITIONS):
            folder = tmp_path / f"{has_config}-{form.value}"
            trace = MadeTrace(3, 128, groups, form, has_config=has_config)
            assert "..." in trace.call("allreduce", "odd", 4_096)["Process Group Ranks"]
            [view] = operations(folder, trace)
            assert view.group is not None and view.group.name.ranks == ranks


def test_members_from_users(tmp_path: Path) -> None:
    """A group without a list is that of the ranks that have used it, if they are as many; else it stays unknown."""
    ranks = (0, 3, 4)
    for rank in ranks:
        trace = MadeTrace(rank, 5, {"uneven": MadeGroup("9", "", ranks)}, has_config=False)
        trace.call("allreduce", "uneven", 4_096)
        trace.write(tmp_path)
    assert graph_in(tmp_path).groups[0].members == (ranks,)
    next(tmp_path.glob("*_10004.*")).unlink()
    profiles = read(tmp_path).profiles
    [line] = gaps_in(profiles, ProfiledGroups(profiles))
    assert line == ("2 of 2 calls, of ranks 0,3, are left out: no trace lists the members of their groups (9)")


def test_uneven_exchanges(tmp_path: Path) -> None:
    """Parts are known in bytes, unless their list is cut; what arrives is known in any case."""
    trace = trace_of(form=Format.POSITIONS)
    trace.call("all_to_allv", "default", 40, 24, sent_parts=(6, 4), received_parts=(3, 3))
    trace.call("all_to_allv", "default", 40, sent_parts=(5, 5), received_parts=(5, 5))
    found = operations(tmp_path, trace)
    assert [bool(view.record.flags & Flag.UNEVEN) for view in found] == [True, False]
    assert found[0].record.splits is not None
    assert (found[0].record.splits.sent, found[0].record.splits.received) == ((96, 64), 96)
    wide = {"all": MadeGroup("0", "default_pg", tuple(range(40)))}
    many = MadeTrace(0, 40, wide, Format.POSITIONS)
    many.call("all_to_allv", "all", 400, 500, sent_parts=[7, *[10] * 38, 13], received_parts=[12] * 40)
    [view] = operations(tmp_path / "many", many)
    assert view.record.splits is not None
    assert (view.record.splits.sent, view.record.splits.received) == ((), 2_000)


def test_positions(tmp_path: Path) -> None:
    """Traces begin and end at different calls: only those that both hold are compared, and the last rank is found."""
    traces = [trace_of(rank, Format.POSITIONS) for rank in range(2)]
    for rank, trace in enumerate(traces):
        for nth in range(12):
            trace.call("allreduce", "default", 1_024)
            trace.events[-1]["ts"] += 20 * rank  # its kernel begins later, and both end together
            trace.events[-1]["dur"] -= 20 * rank
            if rank == 0 and nth < 2:
                trace.events.clear()
            if rank == 1 and nth > 9:
                del trace.events[-3:]
        trace.write(tmp_path)
    found = statistics_of(histories(tmp_path))
    assert found.differences == ()
    [group] = found.groups
    assert (group.first_sequence, group.complete, group.incomplete, group.skew_median_ns) == (0, 8, 0, 20_000)
    assert [(rank.rank, rank.came_last, rank.compared) for rank in found.ranks] == [(0, 0, 8), (1, 8, 8)]
    assert [rank.waiting_ns for rank in found.ranks] == [8 * 20_000, 0]


def test_hosts(tmp_path: Path) -> None:
    """A host is known from the trace, or from a file's name that states the process of the trace as well."""
    for form, name, host in (
        (Format.POSITIONS, "renamed.json", "node0"),
        (Format.GROUPS, "", "node0"),
        (Format.GROUPS, "worker_3.17.pt.trace.json", ""),
    ):
        trace = trace_of(form=form)
        trace.call("allreduce", "default", 64)
        folder = tmp_path / f"{form.value}-{name}"
        trace.write(folder, name)
        assert [history.host for history in histories(folder)] == [host]
