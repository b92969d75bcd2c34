"""A training script without any knowledge of this package, with a fault: `faulty.py FAULT[,FAULT] GATE PIDS [healthy]`.

Each function below is the step in which the fault shows, on every rank; of several faults, each but the first has a
group of its own. `healthy` is how it should have been written. A rank that is to come late waits as long as the gate, a
file, exists. Each rank leaves `reached RANK` beside the gate directly before the step.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.utils.data import DataLoader, Dataset

from tests.jobs.faults.workers.quiet_faults import (
    failing_dtype,
    nan,
    overwritten,
    short_dtype,
    silent_dtype,
    silent_order,
    silent_reduce_op,
    silent_splits,
    slow_data,
    slow_line,
    straggler,
    transposed,
    use_group,
)
from tests.jobs.faults.workers.setting import (
    GOOD_STEPS,
    fault,
    gate,
    go_on,
    gradient,
    healthy,
    is_faulty,
    last,
    pids,
    rank,
    size,
    wait_for_gate,
)


def late() -> None:
    """The last rank is busy elsewhere, nearly all of the time in one line: tests expect it in stacks."""
    while is_faulty and gate.exists():
        time.sleep(0.2)  # late
    dist.all_reduce(gradient)


def kill() -> None:
    """The last rank is killed, as by the kernel when memory runs out."""
    if is_faulty:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(gradient)


def kill_with_child() -> None:
    """The same, and a child holds its sockets, as DataLoader workers do: no peer gets an exception."""
    if is_faulty:
        if os.fork() == 0:
            (pids / f"child of {rank}").write_text(f"{os.getpid()}\n")
            deadline = time.monotonic() + 20
            while gate.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            os._exit(0)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(gradient)


def stop() -> None:
    """The last rank is stopped."""
    if is_faulty:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(gradient)


def exception() -> None:
    """The last rank raises."""
    if is_faulty:
        raise ValueError("a broken batch")
    dist.all_reduce(gradient)


def gil() -> None:
    """Native code of the last rank does not return, and holds the GIL."""
    if is_faulty:
        sum(itertools.repeat(1, 10**13))  # in C from beginning to end
    dist.all_reduce(gradient)


def gil_blocked() -> None:
    """The same, but it waits for something that never comes, and uses no processor."""
    if is_faulty:
        ctypes.PyDLL(None).read(os.pipe()[0], ctypes.create_string_buffer(1), 1)  # blocked in C
    dist.all_reduce(gradient)


def operation() -> None:
    """The last rank calls something else."""
    if is_faulty:
        dist.barrier()
    else:
        dist.all_reduce(gradient)


def shape() -> None:
    """The last rank has a tensor of another size."""
    dist.all_reduce(torch.ones(1_000) if is_faulty else gradient)


def dtype() -> None:
    """The last rank has a tensor of another type, of other bytes."""
    dist.all_reduce(gradient.double() if is_faulty else gradient)


def splits() -> None:
    """The last rank sends the first one two rows more than that one expects."""
    expected = [3] * size
    sent = [5, *expected[1:]] if is_faulty else expected
    dist.all_to_all_single(torch.empty(3 * size, 4), torch.ones(sum(sent), 4), expected, sent)


def gathered() -> None:
    """The last rank gathers a tensor with a row more than the others, as of a last batch that is not full on all."""
    rows = torch.ones(5 if is_faulty else 4, 2)
    dist.all_gather([torch.empty_like(rows) for _ in range(size)], rows)


def root() -> None:
    """The last rank takes itself for the source of a broadcast."""
    dist.broadcast(torch.ones(2), last if is_faulty else 0)
    dist.all_reduce(gradient)


def skipped() -> None:
    """The last rank leaves a broadcast out, and meets the others in the operation after it."""
    if not is_faulty:
        dist.broadcast(torch.ones(2), 0)
    dist.all_reduce(gradient)
    dist.barrier()


def reduce_ones(count: int) -> None:
    """A helper of several callers."""
    dist.all_reduce(torch.ones(count))


def helper() -> None:
    """The last rank leaves out one call of a helper, and meets the others in it after the next one."""
    if not is_faulty:
        reduce_ones(2)  # the first caller
    reduce_ones(3)  # the second caller
    dist.barrier()


def circular() -> None:
    """Groups of adjacent ranks: every rank begins with the group that it shares with the next one."""
    pairs = [dist.new_group([one, (one + 1) % size], group_desc=f"pair_{one}") for one in range(size)]
    own = [pairs[rank], pairs[rank - 1]] if not healthy or rank else [pairs[rank - 1], pairs[rank]]
    for pair in own:
        dist.all_reduce(gradient, group=pair)


def recv() -> None:
    """The last rank waits for a message that its peer does not send."""
    if rank == last:
        dist.recv(gradient, last - 1)
    elif rank == last - 1 and healthy:
        dist.send(gradient, last)
    dist.barrier()  # instead of a send


def rendezvous() -> None:
    """The last rank does not come to `init_process_group`."""


def elsewhere() -> None:
    """The last rank looks for the store at another address than the others, and finds none."""


def new_group() -> None:
    """The last rank does not come to the creation of a group."""
    if is_faulty:
        wait_for_gate()
    dist.new_group(list(range(size)), group_desc="everybody")


def left_out() -> None:
    """The last rank does not create a group that the others create, and goes on."""
    if not is_faulty:
        dist.new_group(list(range(size)), group_desc="everybody")  # left out by one
    dist.all_reduce(gradient)  # instead of creating a group


class Batches(Dataset[torch.Tensor]):
    """The data takes forever on the last rank."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> torch.Tensor:
        if is_faulty:
            os.mkfifo(pids / "shard")
            os.read(os.open(pids / "shard", os.O_RDWR), 1)  # as on a network file system that does not answer
        return torch.ones(4)


def loader() -> None:
    """A worker process of the last rank's DataLoader does not answer."""
    for batch in DataLoader(Batches(), num_workers=1):
        dist.all_reduce(batch)


lock = threading.Lock()


class Locked(Batches):
    """Each sample takes a lock."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        with lock:
            return torch.ones(4)


def hold(is_held: threading.Event, is_over: threading.Event) -> None:
    """Hold the lock for a while."""
    with lock:
        is_held.set()
        is_over.wait(600)


def locked() -> None:
    """The workers of the last rank's DataLoader are forked while a thread holds a lock that they need."""
    is_held, is_over = threading.Event(), threading.Event()
    if is_faulty:
        threading.Thread(target=hold, args=(is_held, is_over), daemon=True).start()
        is_held.wait()
    for batch in DataLoader(Locked(), num_workers=2):
        dist.all_reduce(batch)


def two() -> None:
    """Two pairs of ranks, and in each of them the second comes late, in the first pair only for a while."""
    pairs = [dist.new_group([0, 1], group_desc="first"), dist.new_group([2, 3], group_desc="second")]
    if rank == 1 and not healthy:
        time.sleep(float(os.environ["LATE_S"]))
    if rank == 0:
        gate.with_name("first waits").touch()
    if rank == 2:
        while not gate.with_name("first waits").exists():
            time.sleep(0.01)
        time.sleep(0.5)
    if is_faulty:
        wait_for_gate()
    dist.all_reduce(gradient, group=pairs[rank // 2])


def lock_file() -> None:
    """All ranks wait for a lock file that nobody removes."""
    while not healthy and gate.exists():
        time.sleep(0.2)  # a lock file
    dist.all_reduce(gradient)


def exchange() -> None:
    """The last rank comes late to the second of two exchanges in which no two ranks send another one equally much."""
    sent, received = [rank * size + other for other in range(size)], [other * size + rank for other in range(size)]
    for is_second in (False, True):
        if is_second and is_faulty:
            wait_for_gate()
        dist.all_to_all_single(torch.ones(sum(received), 2), torch.ones(sum(sent), 2), received, sent)


def cut() -> None:
    """Nothing is wrong with these ranks; the test cuts the network between them while all of them pause.

    In the middle of an operation, some ranks could complete it, and would wait in the next one.
    """
    pause = gate.with_name("pause")
    go_on(pause.exists)
    gate.with_name(f"paused-{rank}").touch()
    while pause.exists():
        time.sleep(0.01)
    go_on()


def engine() -> None:
    """Rank 0 sends weights to an engine in a standalone process group; the engine generates forever."""
    if rank == 0:
        dist.broadcast(gradient, src=0, group=transfer[0])
    dist.all_reduce(gradient)


transfer: list[dist.ProcessGroup] = []


def join_transfer(here: int) -> None:
    """Make a world of rank 0 and its engine, as trainers do that send weights: a store of its own, and ranks anew."""
    store = dist.FileStore(f"{os.environ['STORE'].removeprefix('file://')}-transfer", 2)
    group, _ = c10d._new_process_group_helper(
        2, here, [], c10d.Backend("gloo"), dist.PrefixStore("transfer", store), group_name="transfer",
        timeout=timedelta(seconds=120),
    )  # fmt: skip
    c10d._world.pg_group_ranks[group] = {0: 0, 1: 1}
    transfer.append(group)


def meet_engine() -> None:
    """Start the engine as somebody else would, and join it, before any rank waits for another."""
    ready, made = gate.with_name("engine-ready"), gate.with_name("transfer-made")
    if rank == 0:
        launched = ("MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        own = {name: value for name, value in os.environ.items() if name not in launched}
        own |= {"ENGINE": "1", "OTEL_PYTHON_TORCHDIST_READER": "none"}
        child = subprocess.Popen([sys.executable, *sys.argv], env=own)
        (pids / "child of 0").write_text(f"{child.pid}\n")
        while not ready.exists():
            time.sleep(0.01)
        join_transfer(0)
        made.touch()
    while not made.exists():
        time.sleep(0.01)


def be_engine() -> None:
    """Generate, and take the weights."""
    gate.with_name("engine-ready").touch()
    join_transfer(1)
    asked = gate.with_name("reached 0")
    while not asked.exists() or (not healthy and gate.exists()):
        time.sleep(0.2)  # generates
    dist.broadcast(gradient, src=0, group=transfer[0])


FAULTS: dict[str, Callable[[], None]] = {
    step.__name__: step
    for step in (
        late, engine, kill, kill_with_child, stop, exception, gil, gil_blocked, operation, shape, dtype, root, skipped,
        circular, recv, rendezvous, elsewhere, new_group, left_out, loader, locked, two, silent_dtype, nan,
        overwritten, short_dtype, failing_dtype, transposed, silent_reduce_op, exchange, straggler, slow_data,
        slow_line, cut, splits, silent_splits, gathered, helper, lock_file,
        silent_order,
    )
}  # fmt: skip
GO_ON = ("silent_order", "silent_dtype", "silent_splits", "nan", "overwritten", "transposed", "silent_reduce_op")
"""Faults after which a job keeps training."""


def take_good_steps() -> None:
    """Train until all ranks know that the job is watched, so that all of them stop after the same step."""
    unwatched, steps = Path(os.environ.get("UNWATCHED", gate.with_name("unwatched"))), 0
    while steps < GOOD_STEPS or (GOOD_STEPS and gradient[0]):
        gradient.fill_(float(unwatched.exists()))
        dist.all_reduce(gradient)
        time.sleep(0.05)
        steps += 1
    gradient.fill_(1.0)


def main() -> None:
    """Run a few good steps, those in question, and a last one."""
    (pids / str(rank)).write_text(f"{os.getpid()}\n")
    if fault == "rendezvous" and is_faulty:
        wait_for_gate()
    if fault == "elsewhere" and is_faulty:
        with contextlib.suppress(Exception):
            dist.init_process_group(
                "gloo", "tcp://127.0.0.1:1", rank=rank, world_size=size, timeout=timedelta(seconds=12)
            )
    dist.init_process_group(
        "gloo",
        init_method=os.environ["STORE"],
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=120),
    )
    if not os.environ["STORE"].startswith("file"):
        FAULTS.pop("engine", None)  # it is on the node of rank 0, and others cannot reach it
    if fault == "engine" or (fault == "all" and "engine" in FAULTS):
        meet_engine()
    take_good_steps()
    names = [*FAULTS] if fault == "all" else fault.split(",")
    groups = {name: dist.new_group(group_desc=name) for name in names[1:] if fault != "all"}
    for name in names:
        use_group(groups.get(name))
        if name not in ("two", "silent_order") or size == 4:
            gate.with_name(f"reached {rank}").touch()
            FAULTS[name]()
        dist.barrier()
    if names[-1] in GO_ON:
        go_on()


if __name__ == "__main__":
    try:
        be_engine() if "ENGINE" in os.environ else main()
    except RuntimeError:
        time.sleep(1)  # a rank that the backend interrupts with an exception has much to clean up
        raise
