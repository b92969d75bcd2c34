"""An ordinary training of two ranks, which counts for itself what it does; torch counts the collectives with it.

What torch issues by itself (DDP's buckets, what sends objects, what a checkpoint agrees on) is counted by torch's
profiler, and its bytes come from the flight recorder of gloo. Both also see what the program issues, so that they can
be compared with its own count. At the end each rank prints all of that as a line of JSON.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch._C._profiler import _ExperimentalConfig
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, TensorDataset

from otel_torchdist import mark_step

BATCH = 4
FEATURES = 64
LATE_S = 0.3
"""How long rank 1 keeps rank 0 waiting, once in a step and once outside of steps."""
LATE_STEP = 3
SLOW_S = 0.002
FLOPS = 2.5e9


class Ledger:
    """The program's own account of its work.

    Attributes:
        calls: How often it has called each collective, by the description of the group.
        sizes: Bytes that it has contributed to them.
        seconds: Time in each part of the program, by its own clock.
        counts: How often it has been in each of these.
        ended: Monotonic nanoseconds between which each of its steps has ended.
        slept: Seconds that are certainly in a part, because it has slept in it.
        saved: Bytes and files that it has written and read, by what does that.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.sizes: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.ended: list[tuple[int, int]] = []
        self.slept: Counter[str] = Counter()
        self.saved: dict[str, dict[str, int]] = {}

    @contextmanager
    def clocked(self, part: str) -> Iterator[None]:
        """Time a part of the program."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] += time.perf_counter() - begun
            self.counts[part] += 1

    def call(
        self, function: Callable[..., Any], *args: Any, group: Any = None, size: int = 0, named: str = "", **more: Any
    ) -> None:
        """Call a collective, and count it."""
        name = named or function.__name__
        place = f"{'default_pg' if group is None else group.group_desc}/{name}"
        with self.clocked(place):
            function(*args, group=group, **more)
        self.calls[place] += 1
        self.sizes[place] += size

    def wrote(self, operation: str, *files: Path) -> None:
        """Note which files have been saved or loaded."""
        self.saved[operation] = {"bytes": sum(file.stat().st_size for file in files), "files": len(files)}

    def sleep(self, part: str, seconds: float) -> None:
        """Sleep in a part of the program."""
        time.sleep(seconds)
        self.slept[part] += seconds


class Slow(TensorDataset):
    """Data that takes its time."""

    ledger: Ledger | None = None

    def __getitem__(self, index: Any) -> Any:
        """Read an example."""
        if self.ledger is not None:
            self.ledger.sleep("data", SLOW_S)
        return super().__getitem__(index)


class Unhurried(torch.autograd.Function):
    """Passes everything on; its backward pass takes its time."""

    @staticmethod
    def forward(ctx: Any, ledger: Ledger, inputs: torch.Tensor) -> torch.Tensor:
        """Pass on a batch."""
        ctx.ledger = ledger
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, torch.Tensor]:
        """Pass on its gradient."""
        ctx.ledger.sleep("backward", SLOW_S)
        return None, gradients[0]


class Careful(torch.optim.AdamW):
    """An optimizer that takes its time."""

    ledger: Ledger

    def step(self, closure: Any = None) -> Any:
        """Take a step."""
        self.ledger.sleep("optimizer", SLOW_S)
        return super().step(closure)


class Training:
    """A model, its data and its optimizer."""

    def __init__(self, ledger: Ledger, batches: int, folder: Path | None) -> None:
        self.ledger = ledger
        self.folder = folder
        self.batches = batches
        torch.manual_seed(1)
        # Forked before gloo's threads run anything for the first time (pytorch#130610).
        self.loader = DataLoader(self._dataset(), batch_size=BATCH, num_workers=2, persistent_workers=True)
        self.epoch: Iterator[Any] | None = iter(self.loader)
        slow = self._dataset()
        slow.ledger = ledger
        self.tested = DataLoader(slow, batch_size=2 * BATCH)
        with ledger.clocked("init_process_group"):
            dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        self.saved_at = 0.0

    def _dataset(self) -> Slow:
        size = self.batches * BATCH
        return Slow(torch.randn(size, FEATURES), torch.randint(8, (size,)))

    def build(self) -> None:
        """Wrap the model, which torch compares between ranks."""
        layers: list[torch.nn.Module] = [torch.nn.Linear(FEATURES, FEATURES), torch.nn.BatchNorm1d(FEATURES)]
        layers += [torch.nn.Linear(FEATURES, FEATURES), torch.nn.ReLU(), torch.nn.Linear(FEATURES, 8)]
        with self.ledger.clocked("wrap"):
            self.model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.01)
        self.optimizer = Careful(self.model.parameters(), lr=1e-3)
        self.optimizer.ledger = self.ledger
        with self.ledger.clocked("new_group"):
            self.team = dist.new_group([0, 1], group_desc="team")

    def batch(self, iterator: Iterator[Any]) -> Any:
        """Get a batch; None at the end."""
        with self.ledger.clocked("data"):
            try:
                found = next(iterator)
            except StopIteration:
                return None
        self.ledger.counts["batches"] += 1
        return found

    def train(self) -> None:
        """Train for an epoch."""
        epoch, self.epoch = self.epoch or iter(self.loader), None
        while (batch := self.batch(epoch)) is not None:
            inputs, labels = batch
            if self.rank == 1 and len(self.ledger.ended) == LATE_STEP:
                time.sleep(LATE_S)
            with self.ledger.clocked("forward"):
                guessed = Unhurried.apply(self.ledger, self.model(inputs))
                loss = torch.nn.functional.cross_entropy(guessed, labels)
            self.optimizer.zero_grad()
            with self.ledger.clocked("backward"):
                loss.backward()
            ends_ns = time.monotonic_ns()
            with self.ledger.clocked("optimizer"):
                self.optimizer.step()
            if self.folder is not None:
                work = {"samples": len(inputs), "tokens": inputs.numel(), "flops": FLOPS}
                mark_step(**work)
                self.ledger.counts.update(work)
            self.ledger.ended.append((ends_ns, time.monotonic_ns()))

    def evaluate(self) -> None:
        """Sum up over all ranks what is right."""
        right = torch.zeros(2)
        batches = iter(self.tested)
        with torch.no_grad():
            while (batch := self.batch(batches)) is not None:
                inputs, labels = batch
                right += torch.tensor([(self.model.module(inputs).argmax(1) == labels).sum().item(), len(labels)])
        self.ledger.call(dist.all_reduce, right, size=right.nbytes)

    def talk(self) -> None:
        """Exchange messages and objects, and wait for a late rank."""
        message = torch.arange(100)
        if self.rank == 0:
            self.ledger.call(dist.send, message, dst=1, size=message.nbytes)
        else:
            self.ledger.call(dist.recv, message, src=0)
        with self.ledger.clocked("objects"):
            dist.broadcast_object_list([{"epoch": 1, "best": 0.5}], src=0)
            dist.all_gather_object([None, None], {"rank": self.rank}, group=self.team)
        if self.rank == 1:
            time.sleep(LATE_S)
        right = torch.ones(1_000, dtype=torch.float64)
        self.ledger.call(dist.all_reduce, right, group=self.team, size=right.nbytes)
        self.ledger.call(dist.barrier)

    def save(self, folder: Path) -> None:
        """Save and load in both ways."""
        state = {"model": self.model.state_dict()}
        with self.ledger.clocked("save"):
            dcp.save(state, checkpoint_id=folder / "dcp")
        saved = [path for path in (folder / "dcp").iterdir() if path.suffix == ".distcp"]
        self.ledger.wrote("save", *(path for path in saved if path.name.startswith(f"__{self.rank}_")))
        with self.ledger.clocked("load"):
            dcp.load(state, checkpoint_id=folder / "dcp")
        self.ledger.wrote("load", *saved)
        file = folder / f"own-{self.rank}.pt"
        with self.ledger.clocked("torch.save"):
            torch.save(self.optimizer.state_dict(), file)
        self.saved_at = time.time()
        self.ledger.wrote("torch.save", file)
        with self.ledger.clocked("torch.load"):
            torch.load(file)
        self.ledger.wrote("torch.load", file)


def issued(profiler: profile) -> list[dict[str, Any]]:
    """Operations of c10d, in the order in which the profiler saw them, with the plain numbers among their arguments."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiler.export_chrome_trace(file.name)
        events = json.loads(Path(file.name).read_text())["traceEvents"]
    found = [event for event in events if event.get("name", "").startswith("c10d::")]
    return [
        {"name": event["name"], "given": event["args"].get("Concrete Inputs", [])}
        for event in sorted(found, key=lambda event: event["ts"])
    ]


def recorded() -> list[dict[str, Any]]:
    """Collectives in gloo's flight recorder; none if this torch has no such recorder."""
    dump: Any = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json", None)
    entries = json.loads(dump()).get("entries", []) if dump is not None else []
    return sorted(entries, key=lambda entry: entry["record_id"])


def main() -> None:
    """Train two epochs, report, and wait until the gate is gone."""
    parser = argparse.ArgumentParser()
    parser.add_argument("gate", type=Path)
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--checkpoints", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    ledger = Ledger()
    training = Training(ledger, chosen.batches, chosen.checkpoints)
    everywhere = _ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, experimental_config=everywhere) as profiler:
        begun_ns = time.monotonic_ns()
        training.build()
        for _ in range(2):
            training.train()
            training.evaluate()
        training.talk()
        if chosen.checkpoints is not None:
            training.save(chosen.checkpoints)
        ended_ns = time.monotonic_ns()
    logged = training.model._get_ddp_logging_data()
    report = {
        "rank": training.rank,
        "pid": os.getpid(),
        "calls": ledger.calls,
        "sizes": ledger.sizes,
        "seconds": ledger.seconds,
        "slept": ledger.slept,
        "counts": ledger.counts,
        "ended": ledger.ended,
        "saved": ledger.saved,
        "saved_at": training.saved_at,
        "during": [begun_ns, ended_ns],
        "clock_offset_ns": time.time_ns() - time.monotonic_ns(),
        "issued": issued(profiler),
        "recorded": recorded(),
        "bucket_bytes": [int(size) for size in logged["bucket_sizes"].split(",")],
        "rebuilt_bucket_bytes": [int(size) for size in logged["rebuilt_bucket_sizes"].split(",")],
        "sync_ns": logged["backward_comm_time"],
        "overlap_ns": logged["backward_compute_comm_overlap_time"],
        "late_s": LATE_S,
        "torch": torch.__version__,
        "job": [os.environ["TORCHELASTIC_RUN_ID"], os.environ["TORCHELASTIC_RESTART_COUNT"]],
    }
    sys.stdout.write(json.dumps(report) + "\n")  # in one piece: ranks share the pipe
    sys.stdout.flush()
    while chosen.gate.exists():
        time.sleep(0.01)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
