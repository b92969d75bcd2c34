"""Lines of NCCL's watchdog that people have published, one set for each format; and what NCCL's RAS prints."""

from __future__ import annotations

from typing import Final

_WRONG: Final = (
    "This is most likely caused by incorrect usages of collectives, e.g., wrong sizes used across ranks, the order of"
    " collectives is not same for all ranks or the scheduled collective, for some reason, didn't run."
)

# torch 1.13: open-mmlab/mmpretrain#1837
TORCH_1_13: Final = (
    "[E ProcessGroupNCCL.cpp:587] [Rank 14] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE,"
    " Timeout(ms)=1800000) ran for 1800834 milliseconds before timing out."
)
# torch 2.0: aioz-ai/GCD#6
TORCH_2_0: Final = (
    "[E ProcessGroupNCCL.cpp:737] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=56693,"
    " OpType=BROADCAST, Timeout(ms)=1800000) ran for 1804371 milliseconds before timing out."
)
# torch 2.2: arrival-ltd/catalyst-rl-tutorial#15
TORCH_2_2: Final = (
    "[rank1]:[E ProcessGroupNCCL.cpp:1182] [Rank 1] NCCL watchdog thread terminated with exception: [Rank 1] Watchdog"
    " caught collective operation timeout: WorkNCCL(SeqNum=880, OpType=BROADCAST, NumelIn=131137536,"
    " NumelOut=131137536, Timeout(ms)=1800000) ran for 1800695 milliseconds before timing out."
)
# torch 2.3
TORCH_2_3: Final = (
    "[rank7]:[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank 7] Timeout at NCCL work: 1, last enqueued NCCL work: 1, last"
    " completed NCCL work: 3452013982."
)
# torch 2.4: mila-iqia/milabench#269
TORCH_2_4: Final = (
    "[rank3]:[E909 09:55:46.996672294 ProcessGroupNCCL.cpp:1709] [PG 0 (default_pg) Rank 3] Timeout at NCCL work:"
    " 2070, last enqueued NCCL work: 2082, last completed NCCL work: 2069."
)
# torch 2.5: XPixelGroup/BasicSR#737
TORCH_2_5: Final = (
    "[rank1]:[E626 06:24:44.906457629 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 1] Exception"
    " (either an error or timeout) detected by watchdog at work: 808, last enqueued NCCL work: 811, last completed"
    " NCCL work: 807."
)
# torch 2.5, a group without a description: sgl-project/sglang
TORCH_2_5_UNNAMED: Final = (
    "[2025-02-27T16:30:43.48675097Z] [rank3]:[E227 16:30:43.526290891 ProcessGroupNCCL.cpp:1785] [PG ID 2 PG GUID 3"
    " Rank 3] Exception (either an error or timeout) detected by watchdog at work: 32, last enqueued NCCL work: 32,"
    " last completed NCCL work: 31."
)
# torch 2.6, behind the line numbers of a viewer: hiyouga/LlamaFactory#8261
TORCH_2_6: Final = (
    "[rank1]:[E1218 20:27:21.484903450 ProcessGroupNCCL.cpp:2168] [PG ID 1 PG GUID 1 Rank 1]  failure detected by"
    " watchdog at work sequence id: 1 PG status: last enqueued work: 547, last completed work: -1"
)
# NVIDIA/nccl#1409, torch 2.4: two ranks call different operations at one position
TORCH_2_4_MISMATCH: Final = (
    "[rank7]:[E816 01:45:40.183009389 ProcessGroupNCCL.cpp:607] [Rank 7] Watchdog caught collective operation timeout:"
    " WorkNCCL(SeqNum=80078, OpType=BROADCAST, NumelIn=5056, NumelOut=5056, Timeout(ms)=600000) ran for 600026"
    " milliseconds before timing out.",
    "[rank7]:[E816 01:45:40.184373931 ProcessGroupNCCL.cpp:1664] [PG 0 (default_pg) Rank 7] Exception (either an error"
    " or timeout) detected by watchdog at work: 80078, last enqueued NCCL work: 80078, last completed NCCL work:"
    " 80077.",
    "[rank3]:[E816 01:45:40.212150935 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout:"
    " WorkNCCL(SeqNum=80078, OpType=ALLREDUCE, NumelIn=2106881, NumelOut=2106881, Timeout(ms)=600000) ran for 600013"
    " milliseconds before timing out.",
)
# snowflakedb/ArcticTraining#219, torch 2.6
STUCK: Final = (
    "[rank7]:[E626 05:14:36.393067540 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg) Rank 7]"
    " ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives."
)


def timed_out(rank: int, sequence: int, operation: str = "ALLREDUCE", numel: int = 8_388_608) -> list[str]:
    """What a rank of torch 2.10 writes whose operation of the default group times out."""
    place = f"[rank{rank}]:[E710 18:00:32.426182607 ProcessGroupNCCL.cpp"
    return [
        f"{place}:757] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={sequence},"
        f" OpType={operation}, NumelIn={numel}, NumelOut={numel}, Timeout(ms)=1800000) ran for 1800077 milliseconds"
        " before timing out.",
        f"{place}:2395] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure detected by watchdog at work sequence"
        f" id: {sequence} PG status: last enqueued work: {sequence + 40}, last completed work: {sequence - 1}",
        f"{place}:801] Stack trace of the failed collective: ",
        "#0 all_reduce from /usr/local/lib/python3.12/dist-packages/torch/distributed/distributed_c10d.py:3174",
        "#1 wrapper from /usr/local/lib/python3.12/dist-packages/torch/distributed/c10d_logger.py:83",
        "#2 _all_reduce from /workspace/src/models/tensor_parallel.py:8472",
        "#3 _run_code from <frozen runpy>:88",
        "",
    ]


def asked_for_dump(rank: int, enqueued: int, by: int) -> str:
    """What a rank writes that has not timed out, when another one has asked it for a dump."""
    return (
        f"[rank{rank}]:[E710 18:00:32.686716232 ProcessGroupNCCL.cpp:1987] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
        f" Received a dump signal due to a collective timeout from  rank {by} and we will try our best to dump the"
        f" debug info. Last enqueued NCCL work: {enqueued}, last completed NCCL work: {enqueued}.{_WRONG}"
    )


# NVIDIA/nccl#1911, NCCL 2.26.2
RAS_AHEAD: Final = """NCCL version 2.26.2 compiled with CUDA 12.6
CUDA runtime version 12060, driver version 12060

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32   RUNNING  MISMATCH

Errors
======

Warnings
========

#0-0 (fa93daea854b060b) MISMATCH
  Communicator ranks have different AllGather operation counts
  30 ranks have launched up to operation 640
  2 ranks have launched up to operation 641
  Rank 12 -- GPU 4 managed by process 323032 on node 10.137.190.124
  Rank 13 -- GPU 5 managed by process 323033 on node 10.137.190.124
"""
# The user guide of NCCL 2.29
RAS_DEAD: Final = """Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
        4          8            1         32       32

Communicators... (2.05s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4       7-8        32        32   RUNNING  INCOMPLETE

Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 21

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

"""
RAS_JSON: Final = """{"nccl_version": "2.29.1", "communicators_count": 1, "communicators": [
{"hash": "0xae94423cfbb2ef4a", "size": 2, "ranks_count": 1, "missing_ranks_count": 1,
"ranks": [{"rank": 0, "host": "172.16.64.245", "pid": 1524344,
"status": {"init_state": 0, "async_error": 0}, "collective_counts": {"AllReduce": 0}}], "missing_ranks": [{"rank": 1,
"host": "172.16.64.245", "pid": 1524345, "status": {"unresponsive": true, "considered_dead": false}}]}],
"ras": {"collection_time_sec": 0.000, "timeouts_count": 0}}"""
