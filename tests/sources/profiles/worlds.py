"""Jobs of known parallelism on NCCL, as traces of their ranks: what frameworks call in a step, along a mesh's axes.

The rules for calls without shapes were fixed before those in `LATER` were made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tests.analysis.parallelism.worlds import MeshWorld
from tests.sources.profiles.made import Format, MadeGroup, MadeTrace

LAYERS = 4
HIDDEN = 4_096
Roles = tuple[str, ...]


@dataclass(frozen=True)
class World:
    """A job.

    Attributes:
        name: What it is.
        sizes: Ranks along each axis, the innermost first.
        names: What each axis is called.
        run: What one rank calls in one step.
        axes: The roles of each axis.
        wide: What all ranks do together, beyond that.
    """

    name: str
    sizes: tuple[int, ...]
    names: tuple[str, ...]
    run: Callable[[Rank], None]
    axes: tuple[Roles, ...]
    wide: Roles = ()


@dataclass
class Rank:
    """One rank in one step."""

    trace: MadeTrace
    step: int
    at: dict[str, int]

    def gather(self, group: str) -> None:
        """All-gather a layer's parameters."""
        size = len(self.trace.groups[group].ranks)
        self.trace.call("_allgather_base", group, HIDDEN * 64, HIDDEN * 64 * size, dtype="BFloat16")

    def scatter(self, group: str) -> None:
        """Reduce-scatter a layer's gradients."""
        size = len(self.trace.groups[group].ranks)
        self.trace.call("_reduce_scatter_base", group, HIDDEN * 64 * size, HIDDEN * 64)

    def reduce(self, group: str, elements: int, shape: Sequence[int] | None = None) -> None:
        """All-reduce a tensor."""
        self.trace.call("allreduce", group, elements, dtype="BFloat16" if shape else "Float", shape=shape)

    def exchange(self, group: str, rows: Sequence[int], returned: Sequence[int]) -> None:
        """Send members as many rows as the router says."""
        self.trace.call(
            "all_to_allv", group, sum(rows) * HIDDEN, sum(returned) * HIDDEN,
            dtype="BFloat16", shape=(sum(rows), HIDDEN), sent_parts=rows, received_parts=returned,
        )  # fmt: skip

    def send(self, group: str, place: int, elements: int = 8 * HIDDEN) -> None:
        """Send activations to a neighbor."""
        self.trace.call("send", group, elements, dtype="BFloat16", shape=(8, elements // 8), peer=place)

    def receive(self, group: str, place: int, elements: int = 8 * HIDDEN) -> None:
        """Receive activations from a neighbor."""
        self.trace.call("recv", group, elements, dtype="BFloat16", shape=(8, elements // 8), peer=place)

    def log(self) -> None:
        """The loss, averaged for the log; and waits, as there are in every trace."""
        self.trace.call("allreduce", "default", 1, shape=())
        self.trace.wait("default")


def ddp(rank: Rank) -> None:
    """Buckets of gradients, reduced in backward."""
    with rank.trace.backward():
        for bucket in (6_500_000, 6_553_600, 2_431_040):
            rank.reduce("default", bucket)
    rank.log()


def fsdp(rank: Rank, group: str = "default") -> None:
    """Parameters gathered in forward and in backward, gradients scattered in backward."""
    for _ in range(LAYERS):
        rank.gather(group)
    with rank.trace.backward():
        for _ in range(LAYERS):
            rank.gather(group)
            rank.scatter(group)
    rank.log()


def hsdp(rank: Rank) -> None:
    """The same, and what is scattered is averaged over replicas."""
    for _ in range(LAYERS):
        rank.gather("shard")
    with rank.trace.backward():
        for _ in range(LAYERS):
            rank.gather("shard")
            rank.scatter("shard")
            rank.reduce("replicate", HIDDEN * 64)
    rank.log()


def tensors(rank: Rank) -> None:
    """Activations reduced behind attention and MLP, in forward, and in backward before them."""
    for _ in range(2 * LAYERS):
        rank.reduce("tp", 8 * HIDDEN, (8, HIDDEN))


def tp_dp(rank: Rank) -> None:
    """Megatron without overlap: gradients are reduced when backward has returned."""
    tensors(rank)
    with rank.trace.backward():
        tensors(rank)
    for bucket in (40_000_000, 3_456_789):
        rank.reduce("dp", bucket)
    rank.log()


def three(rank: Rank) -> None:
    """Tensors, replicas and a pipeline of as many stages as its group has ranks."""
    stage, stages = rank.at["pp"], len(rank.trace.groups["pp"].ranks)
    for _ in range(4):
        if stage:
            rank.receive("pp", stage - 1)
        tensors(rank)
        if stage < stages - 1:
            rank.send("pp", stage + 1)
            rank.receive("pp", stage + 1)
        with rank.trace.backward():
            tensors(rank)
        if stage:
            rank.send("pp", stage - 1)
    rank.reduce("dp", 20_000_000)
    rank.log()


def experts(rank: Rank) -> None:
    """Tokens to experts and back, in forward and in backward; dense layers as replicas."""
    members = len(rank.trace.groups["ep"].ranks)
    for layer in range(2):
        rows = [64 + 7 * ((rank.trace.rank + place + rank.step + layer) % 3) for place in range(members)]
        returned = [64 + 5 * ((rank.trace.rank + 2 * place + layer) % 4) for place in range(members)]
        rank.trace.call("all_to_all", "ep", members, dtype="Long", shape=(members,))
        rank.exchange("ep", rows, returned)
        rank.exchange("ep", returned, rows)
    with rank.trace.backward():
        rank.reduce("default", 5_000_000)
    rank.log()


def ulysses(rank: Rank) -> None:
    """Heads for positions around attention, always as many; parameters spread over all ranks."""
    for _ in range(4):
        rank.trace.call("all_to_all", "cp", 8 * HIDDEN, dtype="BFloat16", shape=(8, HIDDEN))
    fsdp(rank)


# Made after the rules.


def sequences(rank: Rank, group: str) -> None:
    """Activations gathered before a layer and scattered behind it, along the sequence."""
    size = len(rank.trace.groups[group].ranks)
    rank.trace.call("_allgather_base", group, 8 * HIDDEN, 8 * HIDDEN * size, dtype="BFloat16", shape=(8, 1, HIDDEN))
    rank.trace.call(
        "_reduce_scatter_base", group, 8 * HIDDEN * size, 8 * HIDDEN, dtype="BFloat16", shape=(8 * size, 1, HIDDEN)
    )


def sp_dp(rank: Rank) -> None:
    """Megatron with sequence parallelism and overlap: gradients are reduced in backward."""
    for _ in range(LAYERS):
        sequences(rank, "tp")
    with rank.trace.backward():
        for _ in range(LAYERS):
            sequences(rank, "tp")
            rank.reduce("dp", 10_000_000)
    rank.log()


def recommender(rank: Rank) -> None:
    """As DLRM: embeddings exchanged between all ranks, dense layers reduced, all in the default group."""
    members = rank.trace.world_size
    for table in range(2):
        rows = [10 + (rank.step + place + table) % 5 for place in range(members)]
        rank.exchange("default", rows, rows)
    with rank.trace.backward():
        rank.exchange("default", [9 + rank.step % 3] * members, [9 + rank.step % 3] * members)
        for bucket in (600_000, 523_777):
            rank.reduce("default", bucket)
    rank.log()


def ring(rank: Rank) -> None:
    """Keys and values go once round in each layer, in forward and in backward; replicas beside."""
    members, place = len(rank.trace.groups["cp"].ranks), rank.at["cp"]

    def go_round() -> None:
        for _ in range(LAYERS):
            rank.send("cp", (place + 1) % members)
            rank.receive("cp", (place - 1) % members)

    go_round()
    with rank.trace.backward():
        go_round()
        rank.reduce("dp", 7_000_000)
    rank.log()


FIRST = (
    World("ddp", (8,), ("dp",), ddp, (("DP",),)),
    World("fsdp", (8,), ("fsdp",), fsdp, (("FSDP",),)),
    World("hsdp", (4, 2), ("shard", "replicate"), hsdp, (("FSDP",), ("HSDP replicas",))),
    World("tp_dp", (4, 2), ("tp", "dp"), tp_dp, (("TP",), ("DP",))),
    World("three", (2, 2, 4), ("tp", "dp", "pp"), three, (("TP",), ("DP",), ("PP",))),
    World("experts", (4, 2), ("ep", "rest"), experts, (("EP",), ()), ("DP",)),
    World("ulysses", (4, 2), ("cp", "rest"), ulysses, (("CP (Ulysses)",), ()), ("FSDP",)),
)
LATER = (
    World("sp_dp", (4, 4), ("tp", "dp"), sp_dp, (("TP with SP",), ("DP",))),
    World("recommender", (8,), ("all",), recommender, (("DP", "EP"),)),
    World("ring", (4, 2), ("cp", "dp"), ring, (("CP (ring)",), ("DP",))),
)


def traces_of(
    world: World, form: Format, seed: int | None = None, has_shapes: bool = False, only: Sequence[int] | None = None
) -> Iterator[MadeTrace]:
    """Yield the traces of ranks that have called `world.run` in three steps.

    Args:
        world: The job.
        form: What traces record.
        seed: Shuffles the ranks of the mesh; None for ranks in order.
        has_shapes: Whether the profiler recorded shapes.
        only: The ranks that have a trace; None for all.
    """
    mesh = MeshWorld(world.sizes, seed)
    everyone = MadeGroup("0", "default_pg", tuple(range(mesh.world_size)))
    of_axis = {
        name: [
            MadeGroup(f"{1 + axis * 10_000 + nth}", f"mesh_{name}", ranks) for nth, ranks in enumerate(mesh.along(axis))
        ]
        for axis, name in enumerate(world.names)
    }
    for rank in range(mesh.world_size) if only is None else only:
        own = {name: next(group for group in groups if rank in group.ranks) for name, groups in of_axis.items()}
        trace = MadeTrace(rank, mesh.world_size, {"default": everyone, **own}, form, has_shapes)
        at = {name: group.ranks.index(rank) for name, group in own.items()}
        for step in range(2, 5):
            with trace.step(step):
                world.run(Rank(trace, step, at))
        yield trace
