"""Random calls of every operation of c10d on the fake backend, with tensors of every kind, in several threads.

Each call is made several times from one line, so that the native library learns how it is recorded. A line of JSON says
what each has raised, if anything. With `bare` as its first argument nothing is recorded.
"""

from __future__ import annotations

import contextlib
import random
import re
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from otel_torchdist.capture.core.calls.schemas import collective_schemas
from tests.support.ranks.rank import say, start_capture

MODE, SEED, CALLS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
TIMES = 4
THREADS = 3
WORLD = 4
DTYPES = (
    *(torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool, torch.bfloat16, torch.float16),
    *(torch.complex64, torch.complex32, torch.float8_e4m3fn, torch.int8),
)
SHAPES = ((), (0,), (1,), (4,), (3, 0, 2), (2, 3), (2, 3, 4), (1,) * 10, (2,) * 5)
LENGTHS = (0, 1, 1, 1, 2, 2, 3, 8, 9, 64, 65, 70)
ADDRESS = re.compile("0x[0-9a-f]+|[0-9]{9,}")
NESTED = "List[List[Tensor]]"
BOXED: list[Any] = []
"""Reduce ops; see `boxed_ops`."""


class Subclass(torch.Tensor):
    """A tensor subclass, as libraries define them."""


def plain(choose: random.Random) -> torch.Tensor:
    """A tensor of some shape and dtype."""
    return torch.zeros(choose.choice(SHAPES), dtype=choose.choice(DTYPES))


def inference(choose: random.Random) -> torch.Tensor:
    """An inference tensor, which autograd does not track."""
    with torch.inference_mode():
        return plain(choose)


SPECIAL: tuple[Callable[[random.Random], torch.Tensor], ...] = (
    inference,
    lambda _: torch.ones(4, requires_grad=True),
    lambda _: torch.ones(4, requires_grad=True) * 2,
    lambda _: torch.nn.Parameter(torch.ones(2, 2)),
    lambda _: torch.ones(4, 6).t(),
    lambda _: torch.ones(8)[::2],
    lambda _: torch.ones(8)[8:],
    lambda _: torch.ones(1).expand(5),
    lambda _: torch.eye(3).to_sparse(),
    lambda _: torch.eye(3).to_sparse_csr(),
    lambda _: torch.ones(3, device="meta"),
    lambda _: torch.ones(2, dtype=torch.complex64).conj(),
    lambda _: torch.ones(2, dtype=torch.complex64).conj().imag,
    lambda _: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
    lambda _: torch.ones(2, 2).to_mkldnn(),
    lambda _: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    lambda _: torch.ones(3).as_subclass(Subclass),
    lambda _: torch.empty(1 << 40, device="meta"),
)
REDUCE_OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


def tensor(choose: random.Random) -> torch.Tensor:
    """A tensor of some kind."""
    return plain(choose) if choose.random() < 0.7 else choose.choice(SPECIAL)(choose)


class Boxing(TorchDispatchMode):
    """Captures the boxed reduce op of an all_reduce, because torch 2.13 offers no other way to box one."""

    boxed: Any = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Keep it, and go on."""
        self.boxed = next((one for one in args if "ReduceOp" in str(one)), self.boxed)
        return func(*args, **(kwargs or {}))


def boxed_ops() -> list[Any]:
    """All reduce ops, boxed as the dispatcher takes them; the first multiplies."""
    ops = [dist._make_nccl_premul_sum(2.0), *(dist.ReduceOp(getattr(dist.ReduceOp, name)) for name in REDUCE_OPS)]
    if hasattr(ops[0], "boxed"):
        return [op.boxed() for op in ops]
    dist.init_process_group("fake", rank=0, world_size=WORLD, store=FakeStore())
    boxed = []
    for op in ops:
        with Boxing() as boxing:
            dist.all_reduce(torch.ones(1), op)
        boxed.append(boxing.boxed)
    dist.destroy_process_group()
    return boxed


def reduce_op(choose: random.Random) -> Any:
    """A reduce op."""
    return BOXED[0] if choose.random() < 0.1 else choose.choice(BOXED[1:])


class Arguments:
    """Arguments for one call."""

    def __init__(self, choose: random.Random, group: dist.ProcessGroup) -> None:
        self._choose = choose
        self._group = group
        self._alike = choose.randrange(1000) if choose.random() < 0.5 else None

    def of(self, kinds: dict[str, str]) -> list[Any]:
        """One for each parameter, by name and type.

        Lists of tensors have the same length, and some tensors if others are nested: the fake backend takes the first
        of one list for each of another without looking how many there are.
        """
        length = max(self._choose.choice(LENGTHS), int(NESTED in kinds.values()))
        return [self._one(name, kind, length) for name, kind in kinds.items()]

    def _tensor(self) -> torch.Tensor:
        return tensor(self._choose if self._alike is None else random.Random(self._alike))

    def _one(self, name: str, kind: str, length: int) -> Any:
        choose = self._choose
        match kind:
            case _ if name == "async_op":
                return choose.random() < 0.5
            case _ if name == "timeout":
                return choose.choice((-1, 1000))
            case "__torch__.torch.classes.c10d.ProcessGroup":
                return self._group.boxed()
            case "__torch__.torch.classes.c10d.ReduceOp":
                return reduce_op(choose)
            case "Tensor":
                return self._tensor()
            case "List[Tensor]":
                return [self._tensor() for _ in range(length)]
            case "List[List[Tensor]]":
                inner = choose.choice((1, WORLD, WORLD, length))
                return [[self._tensor() for _ in range(inner)] for _ in range(choose.choice((1, 1, WORLD)))]
            case "Optional[Tensor]":
                return None if choose.random() < 0.8 else self._tensor()
            case "List[int]":
                return [] if choose.random() < 0.5 else [choose.randrange(3) for _ in range(WORLD)]
            case "bool":
                return choose.random() < 0.5
            case _:
                assert kind == "int", (name, kind)
                return choose.choice((0, 0, 1, 3, -1, WORLD, 1 << 40))


def works_in(result: Any) -> list[Any]:
    """Return the Works in an operation's result."""
    parts = result if isinstance(result, tuple) else (result,)
    return [part for part in parts if isinstance(part, torch.ScriptObject)]


def outcome(call: Callable[[], Any], label: str, waits: bool) -> str:
    """What a call raised; empty if nothing."""
    labelled = dist.record_comm(label) if label and hasattr(dist, "record_comm") else contextlib.nullcontext()
    try:
        with labelled:
            result = call()
        if waits:
            for work in works_in(result):
                dist.Work.unbox(work).wait()
    except Exception as error:  # torch goes on to list all kernels, of which ours are some
        return ADDRESS.sub("#", f"{type(error).__name__}: {error}".partition(". ")[0])
    return ""


def issue(group: dist.ProcessGroup, seed: int, outcomes: list[Any]) -> None:
    """Make random calls on a group, each several times, and note their exceptions."""
    choose = random.Random(seed)
    operations = collective_schemas()
    for _ in range(CALLS):
        overload = choose.choice(operations).overload
        schema = overload._schema
        arguments = Arguments(choose, group).of({one.name: str(one.type) for one in schema.arguments})
        label = choose.choice(("", "", "", "one", "two"))
        waits = choose.random() < 0.7
        raised = [outcome(lambda: overload(*arguments), label, waits) for _ in range(TIMES)]  # noqa: B023  # called at once
        outcomes.append((schema.name, raised))


def main() -> None:
    """Issue calls in this thread, on the default group, and in others, each on its own."""
    warnings.simplefilter("ignore")
    BOXED.extend(boxed_ops())
    capture = start_capture(16384) if MODE == "recorded" else None
    dist.init_process_group("fake", rank=0, world_size=WORLD, store=FakeStore())
    groups = [dist.new_group(group_desc=f"group {index}") for index in range(THREADS)]
    default = dist.group.WORLD
    assert default is not None
    outcomes: list[list[Any]] = [[] for _ in range(THREADS + 1)]
    threads = [
        threading.Thread(target=issue, args=(group, SEED + index, outcomes[index]))
        for index, group in enumerate(groups, 1)
    ]
    for thread in threads:
        thread.start()
    issue(default, SEED, outcomes[0])
    for thread in threads:
        thread.join()
    say(outcomes=outcomes)
    dist.destroy_process_group()
    if capture is not None:
        capture.uninstall()


if __name__ == "__main__":
    main()
