"""Texts that name ranks in words: desync reports, fingerprints, barriers of the store, waits for what a rank gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_torchdist.sources.evidence.findings import ToolFinding, findings_of
from otel_torchdist.sources.evidence.statements import StatementKind
from tests.sources.evidence.reading import read

HEAD = (
    "[rank{0}]:[E515 18:36:47.343377708 ProcessGroupNCCL.cpp:1937] Rank 0\n"
    "\t - [0] Timeout at collective: ALLREDUCE, #315\n"
)
REPORT = (
    "\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:\n"
    "\t   - [1, 2] joined but didn't finish collective #315 (count from 1)\n"
    "\t     [3] finished collective #314, but didn't join collective #315 (count from 1)\n"
)
FAILED = (
    "[rank{0}]:[E515 18:36:47.343391940 ProcessGroupNCCL.cpp:2268] [PG ID 3 PG GUID {1} Rank 0]  failure detected by "
    "watchdog at work sequence id: 315 PG status: last enqueued work: 315, last completed work: 314\n"
)
TITLE = "RuntimeError: Detected mismatch between collectives on ranks. "
CALL = (
    "Rank {0} is running collective: CollectiveFingerPrint(SequenceNumber=7, OpType={1}, TensorShape=[{2}], "
    "TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cpu, layout=Strided (default), "
    "requires_grad=false (default), pinned_memory=false (default), memory_format=(nullopt)))"
)
WITHOUT = "Rank {0} is running collective: CollectiveFingerPrint(SequenceNumber=7OpType={1})"
OLD_BARRIER = (
    "INFO:root:Waiting in store based barrier to initialize process group for rank: {0}, key: {3} "
    "(world_size={1}, worker_count={2}, timeout=0:30:00)\n"
)
BARRIER = (
    "DEBUG:c10d:Waiting in store based barrier to initialize process group for 10.0118 secondsrank: {0}, key: {3} "
    "(world_size={1}, num_workers_joined={2}, timeout=0:30:00 error=Socket Timeout)\n"
)
GAVE_UP = (
    "torch.distributed.DistStoreError: Timed out initializing process group in store based barrier on rank {0}, "
    "for key: {3} (world_size={1}, num_workers_joined={2}, timeout=0:30:00 error=Socket Timeout)\n"
)
KEY = "store_based_barrier_key:1"
ID = (
    "[rank{0}]: torch.distributed.DistBackendError: [{1}] is setting up NCCL communicator and {2} ncclUniqueId from "
    "[0] via c10d key-value store by key '0', but store->get('0') got error: {3}\n"
)


def found(folder: Path, kind: StatementKind, *texts: str) -> list[ToolFinding]:
    """The findings of a kind, in their order."""
    return [one for one in findings_of(read(folder, *texts).statements) if one.kind is kind]


def named(findings: list[ToolFinding]) -> list[tuple[tuple[int, ...], tuple[str, ...]]]:
    """Whom they name."""
    return [(one.ranks, one.unidentified) for one in findings]


@pytest.mark.parametrize("label", ["", "[default3]:", "2024-05-05T10:00:00.123456789Z "])
def test_desync_report_on_the_default_group(tmp_path: Path, label: str) -> None:
    """The ranks that the report names come first of all, with what they have done."""
    text = HEAD.format(0) + REPORT + FAILED.format(0, "0(default_pg)")
    lines = "".join(label + line for line in text.splitlines(keepends=True))
    first = findings_of(read(tmp_path, lines).statements)[:2]
    assert [(one.kind, one.ranks) for one in first] == [(StatementKind.DESYNC, (1, 2)), (StatementKind.DESYNC, (3,))]
    assert first[1].text == "has finished #314 of its group, but has not joined #315, says PyTorch's desync report"


def test_desync_report_on_another_group(tmp_path: Path) -> None:
    """Numbers are ranks of the group that timed out: they are not taken for ranks of the job."""
    text = HEAD.format(4) + REPORT + FAILED.format(4, "12(mesh_tp)") + FAILED.format(0, "0(default_pg)")
    assert named(found(tmp_path, StatementKind.DESYNC, text)) == [
        ((), ("rank 1 of mesh_tp", "rank 2 of mesh_tp")),
        ((), ("rank 3 of mesh_tp",)),
    ]


def test_desync_report_on_ranks_that_never_came(tmp_path: Path) -> None:
    """Without a line that names the group, as before torch 2.4, it stays open which ranks of the job they are."""
    text = (
        "\t - To our best knowledge, ranks [5, 6] are the lagging ranks that caused this timeout. They never joined any"
    )
    assert named(found(tmp_path, StatementKind.DESYNC, f"{text} collectives\n")) == [
        ((), ("rank 5 of its group", "rank 6 of its group"))
    ]


def fingerprints(*calls: tuple[int, str, str, str]) -> str:
    """What ranks raise: each says its own call, and what it reads of another one's."""
    return "".join(f"[rank{rank}]: {TITLE}{own}, but {other}.{more}\n" for rank, own, other, more in calls)


def test_fingerprints_with_different_shapes(tmp_path: Path) -> None:
    """The rank in the minority is named with both calls, however long the lines are."""
    differ = "Collectives differ in the following aspects: \t Tensor Tensor shapes: 4vs 5"
    texts = fingerprints(
        (0, CALL.format(0, "ALLREDUCE", "4"), CALL.format(2, "ALLREDUCE", "5"), differ),
        (1, CALL.format(1, "ALLREDUCE", "4"), CALL.format(2, "ALLREDUCE", "5"), differ),
    )
    [one] = found(tmp_path, StatementKind.DIFFERENT_CALLS, texts)
    assert (one.ranks, one.text) == (
        (2,),
        "calls all_reduce of [5] float as #7 of its group, where ranks 0-1 call all_reduce of [4] float",
    )


def test_fingerprints_of_different_operations(tmp_path: Path) -> None:
    """What a rank says of another one's operation is not believed: torch reads it from the wrong bytes."""
    text = fingerprints(
        (0, CALL.format(0, "BROADCAST", "3"), WITHOUT.format(1, "REDUCE"), ""),
        (1, WITHOUT.format(1, "BARRIER"), WITHOUT.format(0, "GATHER"), ""),
        (2, CALL.format(2, "BROADCAST", "3"), WITHOUT.format(1, "REDUCE"), ""),
    )
    [one] = found(tmp_path, StatementKind.DIFFERENT_CALLS, text)
    assert (one.ranks, one.text) == (
        (1,),
        "calls barrier as #7 of its group, where ranks 0,2 call broadcast of [3] float",
    )


def test_fingerprints_of_two_ranks(tmp_path: Path) -> None:
    """Of two ranks neither is in the minority."""
    text = fingerprints((1, CALL.format(1, "ALLREDUCE", "4"), CALL.format(0, "ALLREDUCE", "5"), ""))
    [one] = found(tmp_path, StatementKind.DIFFERENT_CALLS, text)
    assert (one.ranks, one.text) == (
        (),
        "ranks disagree on #7 of its group: rank 0 calls all_reduce of [5] float; rank 1 calls all_reduce of [4] float",
    )


@pytest.mark.parametrize("line", [OLD_BARRIER, BARRIER, GAVE_UP], ids=["1.13", "2.1", "exception"])
def test_rank_that_has_not_come_to_the_store(tmp_path: Path, line: str) -> None:
    """If as many ranks wait as have come, the one that has not is certain; each rank may have a file of its own."""
    [one] = found(tmp_path, StatementKind.MISSING_AT_STORE, *(line.format(rank, 4, 3, KEY) for rank in (0, 1, 3)))
    assert (one.ranks, one.text) == (
        (2,),
        f"has not arrived: 3 of 4 ranks have reached the barrier '{KEY}', where ranks 0-1,3 wait",
    )


def test_ranks_that_have_written_nothing(tmp_path: Path) -> None:
    """Where more have come than have written so, nobody is named."""
    [one] = found(tmp_path, StatementKind.MISSING_AT_STORE, "".join(BARRIER.format(rank, 4, 3, KEY) for rank in (0, 2)))
    assert (one.ranks, one.text) == (
        (),
        f"3 of 4 ranks have reached the barrier '{KEY}'; only ranks 0,2 are known to have arrived",
    )


def test_barrier_that_an_earlier_attempt_has_used(tmp_path: Path) -> None:
    """More than there are have come."""
    [one] = found(tmp_path, StatementKind.MISSING_AT_STORE, GAVE_UP.format(2, 4, 5, KEY))
    assert one.text.startswith(f"5 of 4 ranks have reached the barrier '{KEY}': more than exist")


def test_barrier_that_is_over(tmp_path: Path) -> None:
    """A barrier that a rank has left is no failure, whatever was written before."""
    over = f"INFO:c10d:Rank 0: Completed store-based barrier for key:{KEY} with 4 nodes.\n"
    evidence = read(tmp_path, f"Added key: {KEY} to store for rank: 0\n" + BARRIER.format(0, 4, 3, KEY) + over)
    assert [one for one in findings_of(evidence.statements) if one.kind.is_failure] == []


@pytest.mark.parametrize("error", ["Socket Timeout", "wait timeout after 600000ms, keys: /default_pg/0//cuda//0"])
@pytest.mark.parametrize("verb", ["retrieving", "retreiving"])
def test_wait_for_what_a_rank_gives(tmp_path: Path, error: str, verb: str) -> None:
    """Ranks that wait for NCCL's id wait for rank 0, which is named before them."""
    text = ID.format(1, 1, verb, error) + ID.format(3, 3, verb, error)
    findings = findings_of(read(tmp_path, text).statements)
    assert [(one.kind, one.ranks) for one in findings[:2]] == [
        (StatementKind.MISSING_AT_STORE, (0,)),
        (StatementKind.WAITS_AT_STORE, (1, 3)),
    ]
    assert findings[0].text == "has not given NCCL's id to its group: ranks 1,3 wait for it"


def test_wait_in_a_smaller_group(tmp_path: Path) -> None:
    """In a group whose ranks have other numbers, its rank 0 is not that of the job."""
    findings = found(tmp_path, StatementKind.MISSING_AT_STORE, ID.format(5, 1, "retrieving", "Socket Timeout"))
    assert named(findings) == [((), ("rank 0 of its group",))]


def test_store_that_was_lost(tmp_path: Path) -> None:
    """If the connection broke, rank 0 is not said to be late."""
    text = ID.format(1, 1, "retrieving", "Connection reset by peer")
    assert found(tmp_path, StatementKind.MISSING_AT_STORE, text) == []
    [one] = found(tmp_path, StatementKind.WAITS_AT_STORE, text)
    assert one.text.endswith("and lost the store: Connection reset by peer")


def test_clients_of_the_store(tmp_path: Path) -> None:
    """How many have come, and where the others look for it."""
    host = "[rank0]: DistStoreError: Timed out after 601 seconds waiting for clients. 3/4 clients joined.\n"
    client = (
        "[E socket.cpp:1019] [c10d] The client socket has timed out after 300000ms while trying to connect to "
        "(10.0.0.1, 29500).\n"
    )
    texts = [one.text for one in found(tmp_path, StatementKind.WAITS_AT_STORE, host, client)]
    assert sorted(texts) == [
        "could not connect to the store at 10.0.0.1, port 29500 within 300000ms",
        "hosts the store, and waited 601 s for its clients: 3 of 4 have joined",
    ]
