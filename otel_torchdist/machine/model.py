"""What is read of a machine, at one moment. Frozen data only."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from otel_torchdist.model.symptoms import Symptom


class Resource(enum.Enum):
    """What tasks wait for; the value is the name of the kernel's file, and of the label."""

    CPU = "cpu"
    MEMORY = "memory"
    IO = "io"


@dataclass(frozen=True, slots=True)
class Pressure:
    """The kernel's pressure stall information (PSI) on one resource.

    Attributes:
        some_share: Share of the last 10 s in which a task waited for it, from 0 to 1.
        full_share: Share in which all tasks that were not idle did.
        some_s: The former in seconds, since boot.
        full_s: The latter.
    """

    some_share: float
    full_share: float
    some_s: float
    full_s: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of the node, in bytes.

    Attributes:
        total: All of it.
        available: What programs can still get without swapping, as the kernel estimates it.
        states: What it is used for, by `system.memory.state`; adds up to the total.
        swap_used: Swapped out.
    """

    total: int
    available: int
    states: Mapping[str, int]
    swap_used: int


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface.

    Attributes:
        name: As the kernel calls it.
        received: Bytes.
        transmitted: Bytes.
        errors: Packets that were received or sent with an error.
        dropped: Packets that were dropped.
        limit: Its speed in bytes per second; None if it has none or does not say.
    """

    name: str
    received: int
    transmitted: int
    errors: int
    dropped: int
    limit: float | None


@dataclass(frozen=True, slots=True)
class InfinibandPort:
    """A port of an InfiniBand or RoCE adapter.

    Attributes:
        name: Adapter and port: `mlx5_0/1`.
        received: Bytes.
        transmitted: Bytes.
        errors: How often what went wrong: `link_downed`, `symbol_error` and others.
        limit: Its speed in bytes per second; None if it does not say.
    """

    name: str
    received: int
    transmitted: int
    errors: Mapping[str, int]
    limit: float | None


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """What a rank's process uses.

    Attributes:
        resident: Bytes of physical memory, those that it shares with others included.
        virtual: Bytes of its address space.
        user_s: Processor time in its own code.
        system_s: Processor time in the kernel.
        threads: How many threads it has.
    """

    resident: int
    virtual: int
    user_s: float
    system_s: float
    threads: int


@dataclass(frozen=True, slots=True)
class CgroupFigures:
    """What is known of the cgroup of a rank, which in a container is that of the container.

    Attributes:
        memory: Bytes that it uses, page cache included; None if that cannot be read.
        memory_limit: Bytes that it may use; None for no limit.
        pressure: By resource; empty in cgroups of version 1.
    """

    memory: int | None
    memory_limit: int | None
    pressure: Mapping[Resource, Pressure]


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as NVML sees it. What a device or driver does not report is None, or empty.

    Attributes:
        uuid: `GPU-…`.
        model: Its name.
        is_lost: Whether the driver has lost it.
        memory_used: Bytes in use by all processes.
        memory_total: Bytes.
        power_w: Watts.
        throttled: Why its clocks are held down, as in `THROTTLE_REASONS`.
        ecc_corrected: Memory errors that were corrected.
        ecc_uncorrected: Memory errors that were not.
        nvlink_received: Bytes over all its NVLinks.
        nvlink_transmitted: Bytes over all its NVLinks.
    """

    uuid: str
    model: str = ""
    is_lost: bool = False
    memory_used: int | None = None
    memory_total: int | None = None
    power_w: float | None = None
    throttled: tuple[str, ...] | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    nvlink_received: int | None = None
    nvlink_transmitted: int | None = None


@dataclass(frozen=True, slots=True)
class RankFigures:
    """What is known of the machine where one rank is concerned.

    Attributes:
        process: Its process; None if it is over, or is not seen from here.
        cgroup: Its cgroup; None likewise.
        gpu: UUID of its GPU; '' if it has none, or is not known.
    """

    process: ProcessFigures | None = None
    cgroup: CgroupFigures | None = None
    gpu: str = ""


@dataclass(frozen=True, slots=True)
class MachineReading:
    """Everything that was read at one moment.

    Attributes:
        host: Name of the node.
        memory: Its memory; None if it cannot be read.
        cpu_s: Processor time of all its cores, by `cpu.mode`.
        pressure: By resource.
        interfaces: Network interfaces, a bounded number.
        ports: InfiniBand ports, a bounded number.
        gpus: GPUs, a bounded number.
        xids: How many errors the driver has reported, by GPU and Xid.
        ranks: By the nonce of their tape.
        symptoms: What may explain a stall of any rank here.
        symptoms_of_cgroups: The same for single ranks, by nonce.
        symptoms_of_gpus: The same for those on a GPU, by its UUID.
    """

    host: str
    memory: Memory | None = None
    cpu_s: Mapping[str, float] = field(default_factory=dict[str, float])
    pressure: Mapping[Resource, Pressure] = field(default_factory=dict[Resource, Pressure])
    interfaces: tuple[Interface, ...] = ()
    ports: tuple[InfinibandPort, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    xids: Mapping[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    ranks: Mapping[int, RankFigures] = field(default_factory=dict[int, RankFigures])
    symptoms: tuple[Symptom, ...] = ()
    symptoms_of_cgroups: Mapping[int, tuple[Symptom, ...]] = field(default_factory=dict[int, tuple[Symptom, ...]])
    symptoms_of_gpus: Mapping[str, tuple[Symptom, ...]] = field(default_factory=dict[str, tuple[Symptom, ...]])

    def symptoms_of(self, nonce: int) -> tuple[Symptom, ...]:
        """What may explain a stall of the rank whose tape has this nonce."""
        figures = self.ranks.get(nonce)
        of_gpu = self.symptoms_of_gpus.get(figures.gpu, ()) if figures is not None else ()
        return (*of_gpu, *self.symptoms_of_cgroups.get(nonce, ()), *self.symptoms)
