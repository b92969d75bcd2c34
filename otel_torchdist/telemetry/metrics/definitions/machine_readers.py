"""Reads the series of the machine from a node's snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from otel_torchdist.machine.model import CgroupFigures, Gpu, InfinibandPort, Interface, MachineReading, ProcessFigures
from otel_torchdist.machine.nvml import THROTTLE_REASONS
from otel_torchdist.telemetry.metrics.labels import label_value
from otel_torchdist.telemetry.metrics.model import Labels, Numbers
from otel_torchdist.telemetry.metrics.snapshots import NodeSnapshot, RankSnapshot

IN: Final = "receive"
OUT: Final = "transmit"
"""Values of `network.io.direction`."""

Parts = Callable[[MachineReading], Iterable[tuple[Labels, float | None]]]


def of_machine(parts: Parts) -> Callable[[NodeSnapshot], Numbers]:
    """Make a reader of numbers of the node; those that are None have no series.

    Args:
        parts: Returns label values behind that of the host, each with a number.
    """

    def read(node: NodeSnapshot) -> Numbers:
        machine = node.machine
        if machine is None:
            return
        for labels, number in parts(machine):
            if number is not None:
                yield (machine.host, *labels), number

    return read


def of_interfaces(value: Callable[[Interface], float | None]) -> Callable[[NodeSnapshot], Numbers]:
    """Make a reader of one number per network interface."""
    return of_machine(lambda machine: [((one.name,), value(one)) for one in machine.interfaces])


def interface_bytes(machine: MachineReading) -> Iterator[tuple[Labels, float]]:
    """Bytes of each interface, by direction."""
    for one in machine.interfaces:
        yield (one.name, IN), one.received
        yield (one.name, OUT), one.transmitted


def port_bytes(machine: MachineReading) -> Iterator[tuple[Labels, float]]:
    """Bytes of each InfiniBand port, by direction."""
    for one in machine.ports:
        yield (one.name, IN), one.received
        yield (one.name, OUT), one.transmitted


def link_limits(machine: MachineReading) -> Iterator[tuple[Labels, float | None]]:
    """Speed of each link that says it."""
    links: tuple[Interface | InfinibandPort, ...] = (*machine.interfaces, *machine.ports)
    return (((one.name,), one.limit) for one in links)


def hardware_errors(machine: MachineReading) -> Iterator[tuple[Labels, float]]:
    """Errors of GPUs and InfiniBand ports, by what they are."""
    for port in machine.ports:
        for kind, count in port.errors.items():
            yield (port.name, kind), count
    for gpu in machine.gpus:
        ecc = {"ecc_corrected": gpu.ecc_corrected, "ecc_uncorrected": gpu.ecc_uncorrected}
        yield from (((gpu.uuid, kind), count) for kind, count in ecc.items() if count is not None)
    for (uuid, number), count in machine.xids.items():
        yield (uuid, f"xid_{number}"), count


def of_gpus(value: Callable[[Gpu], float | None]) -> Callable[[NodeSnapshot], Numbers]:
    """Make a reader of one number per GPU."""
    return of_machine(lambda machine: [((one.uuid,), value(one)) for one in machine.gpus])


def gpu_bytes(machine: MachineReading) -> Iterator[tuple[Labels, float | None]]:
    """Bytes over the NVLinks of each GPU, by direction."""
    for one in machine.gpus:
        yield (one.uuid, IN), one.nvlink_received
        yield (one.uuid, OUT), one.nvlink_transmitted


def throttling(machine: MachineReading) -> Iterator[tuple[Labels, float]]:
    """For each GPU and reason whether it holds the clocks down."""
    for one in machine.gpus:
        for reason in THROTTLE_REASONS.values() if one.throttled is not None else ():
            yield (one.uuid, reason), int(reason in (one.throttled or ()))


def pressures(machine: MachineReading) -> Iterator[tuple[Labels, float]]:
    """Seconds lost to each resource, for some tasks and for all."""
    for resource, one in machine.pressure.items():
        yield (resource.value, "some"), one.some_s
        yield (resource.value, "full"), one.full_s


def of_process(value: Callable[[ProcessFigures], float]) -> Callable[[NodeSnapshot], Numbers]:
    """Make a reader of one number per rank whose process is seen."""

    def read(node: NodeSnapshot) -> Numbers:
        for rank, one in _processes(node):
            yield (rank.run, str(rank.rank)), value(one)

    return read


def process_cpu(node: NodeSnapshot) -> Numbers:
    """Processor time of each rank's process, by mode."""
    for rank, one in _processes(node):
        yield (rank.run, str(rank.rank), "user"), one.user_s
        yield (rank.run, str(rank.rank), "system"), one.system_s


def rank_info(node: NodeSnapshot) -> Numbers:
    """The node and the GPU of each rank."""
    for rank in node.ranks:
        if node.machine is not None and rank.machine is not None:
            yield (rank.run, str(rank.rank), node.machine.host, label_value(rank.machine.gpu)), 1


def of_cgroups(value: Callable[[CgroupFigures], float | None]) -> Callable[[NodeSnapshot], Numbers]:
    """Make a reader of one number per run on this node, of the cgroup of its first rank here."""

    def read(node: NodeSnapshot) -> Numbers:
        for (run, host), one in _cgroups(node).items():
            number = value(one)
            if number is not None:
                yield (run, host), number

    return read


def cgroup_pressures(node: NodeSnapshot) -> Numbers:
    """Seconds that these cgroups have lost to each resource, for some tasks and for all."""
    for (run, host), cgroup in _cgroups(node).items():
        for resource, one in cgroup.pressure.items():
            yield (run, host, resource.value, "some"), one.some_s
            yield (run, host, resource.value, "full"), one.full_s


def job_info(node: NodeSnapshot) -> Numbers:
    """What launchers and trackers call the job of each run; runs that none of them knows have no series."""
    seen: set[str] = set()
    for rank in node.ranks:
        job = rank.job
        named = (
            job.slurm_job_id,
            job.slurm_job_name,
            job.kubernetes_namespace,
            job.kubernetes_pod,
            job.ray_job_id,
            job.elastic_run_id,
            job.elastic_restart_count or job.slurm_restart_count,
            job.mlflow_run_id,
            job.wandb_run_id,
        )
        if rank.run not in seen and any(named):
            seen.add(rank.run)
            yield (rank.run, *map(label_value, named)), 1


def _processes(node: NodeSnapshot) -> Iterator[tuple[RankSnapshot, ProcessFigures]]:
    for rank in node.ranks:
        if rank.machine is not None and rank.machine.process is not None:
            yield rank, rank.machine.process


def _cgroups(node: NodeSnapshot) -> dict[tuple[str, str], CgroupFigures]:
    host = node.machine.host if node.machine is not None else ""
    found: dict[tuple[str, str], CgroupFigures] = {}
    for rank in node.ranks:
        if rank.machine is not None and rank.machine.cgroup is not None:
            found.setdefault((rank.run, host), rank.machine.cgroup)
    return found
