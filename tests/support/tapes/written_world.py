"""Tapes of a job that never ran: ranks in a grid of tensor and data parallelism, one of which is slow."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.model.kinds import How, RecordKind, RunIdState
from otel_torchdist.model.names import CallSiteName, GroupName, SignatureName
from otel_torchdist.tape.identity import identify
from otel_torchdist.tape.writer import TapeWriter
from tests.support.tapes.fake_tape import RUN_ID

MS: Final = 1_000_000
MIB: Final = 1 << 20
BEGAN_NS: Final = 1_000 * MS
LAYER_MS: Final = 3.0
TENSOR: Final = SignatureName("all_reduce", "sum", ((512, 512),), ("float32",), "cpu", 1)
FLAT: Final = SignatureName("all_reduce", "avg", ((6 << 20,),), ("float32",), "cpu", 1)
LAYER: Final = CallSiteName("forward", "/home/ada/model.py", 88)
BACKWARD: Final = CallSiteName("backward", "/home/ada/train.py", 42)


@dataclass(frozen=True)
class WrittenWorld:
    """What was written.

    Attributes:
        ranks: Ranks.
        tensor: Ranks of a tensor-parallel group: neighbors.
        layers: Calls of such a group in a step.
        steps: Steps.
        slow: The rank that comes late to its first call of each step.
        late_ms: How late.
        stall_step: The step in which it is `stall_ms` late; -1 for none.
        stall_ms: How late it is then.
        ranks_a_host: Ranks of a node; each node has a clock of its own. 0 for one node.
        hosts: How nodes are called.
        site: Where gradients are reduced.
        name: What the data-parallel groups are called.
        leaves_open: Whether the last call of all ranks never ends.
    """

    ranks: int = 8
    tensor: int = 2
    layers: int = 2
    steps: int = 6
    slow: int = 3
    late_ms: float = 5.0
    stall_step: int = -1
    stall_ms: float = 4_000.0
    ranks_a_host: int = 0
    hosts: str = "node"
    site: CallSiteName = BACKWARD
    name: str = "mesh_dp"
    leaves_open: bool = False

    def write(self, directory: Path, capacity: int = 256) -> None:
        """Write all tapes, and close them."""
        directory.mkdir(mode=0o700, exist_ok=True)
        for rank in range(self.ranks):
            host = f"{self.hosts}{rank // self.ranks_a_host}" if self.ranks_a_host else self.hosts
            identity = identify(rank, rank % (self.ranks_a_host or self.ranks), self.ranks, capacity)
            boot = identity.boot_id + (rank // self.ranks_a_host if self.ranks_a_host else 0)
            with_host = dataclasses.replace(identity, host=host, boot_id=boot)
            writer = TapeWriter(directory, with_host)
            writer.set_run_id(RUN_ID, RunIdState.AGREED)
            self._rank(writer, rank)
            writer.close()

    def _rank(self, writer: TapeWriter, rank: int) -> None:
        first = rank - rank % self.tensor
        everyone = GroupName("0", "default_pg", tuple(range(self.ranks)), 0, "gloo", True)
        tensor = GroupName("1", "mesh_tp", tuple(range(first, first + self.tensor)), 0, "gloo", True)
        data = GroupName("2", self.name, tuple(range(rank % self.tensor, self.ranks, self.tensor)), 0, "gloo", True)
        writer.names.intern(everyone)
        at_ms = 0.0
        for step in range(self.steps):
            late_ms = self.stall_ms if step == self.stall_step else self.late_ms
            for layer in range(self.layers):
                arrives = at_ms + LAYER_MS + (late_ms if not layer and rank == self.slow else 0.0)
                waits = late_ms if not layer and first <= self.slow < first + self.tensor else 0.0
                sequence = step * self.layers + layer + 1
                self._call(writer, step, sequence, tensor, TENSOR, LAYER, MIB, (arrives, at_ms + LAYER_MS + waits + 1))
                at_ms += LAYER_MS + waits + 1
            # All tensor-parallel groups wait for the slow one here.
            together_ms = self._step_end(step)
            is_last = self.leaves_open and step == self.steps - 1
            ends = None if is_last else together_ms + 4
            self._call(writer, step, step + 1, data, FLAT, self.site, 24 * MIB, (at_ms + 1, ends))
            at_ms = together_ms + 6
            if not is_last:
                writer.step_ended(step, BEGAN_NS + round(at_ms * MS), 0)

    def _step_end(self, step: int) -> float:
        """When the slow group has come to the end of a step."""
        length = self.layers * (LAYER_MS + 1) + 1
        late = sum(self.stall_ms if one == self.stall_step else self.late_ms for one in range(step + 1))
        return step * (length + 6) + length + late

    def _call(
        self,
        writer: TapeWriter,
        step: int,
        sequence: int,
        group: GroupName,
        signature: SignatureName,
        site: CallSiteName,
        size: int,
        times: tuple[float, float | None],
    ) -> None:
        names, entered_ns = writer.names, BEGAN_NS + round(times[0] * MS)
        ids = names.intern(group), names.intern(signature), names.intern(site)
        number = writer.begin(entered_ns, step, sequence, size, *ids, 0, -1, 0, 1, RecordKind.OPERATION, 0)
        if times[1] is not None:
            writer.complete(number, entered_ns, BEGAN_NS + round(times[1] * MS), How.CALL)
