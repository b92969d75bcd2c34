"""The metrics of the machine under the ranks; see `table`. Names are those of OpenTelemetry where it has them."""

from __future__ import annotations

from typing import Final

from otel_torchdist import semconv
from otel_torchdist.machine.model import MachineReading
from otel_torchdist.semconv import LABEL_HOST, LABEL_RANK, LABEL_RUN
from otel_torchdist.telemetry.metrics.definitions.machine_readers import (
    cgroup_pressures,
    gpu_bytes,
    hardware_errors,
    interface_bytes,
    job_info,
    link_limits,
    of_cgroups,
    of_gpus,
    of_interfaces,
    of_machine,
    of_process,
    port_bytes,
    pressures,
    process_cpu,
    rank_info,
    throttling,
)
from otel_torchdist.telemetry.metrics.model import MetricKind, NumberMetric, Unit

_RANK: Final = (LABEL_RUN, LABEL_RANK)
_NODE: Final = (LABEL_HOST,)
_DEVICE: Final = (LABEL_HOST, semconv.LABEL_DEVICE)
_INTERFACE: Final = (LABEL_HOST, semconv.LABEL_INTERFACE)


def _memory_total(machine: MachineReading) -> list[tuple[tuple[str, ...], float | None]]:
    return [((), machine.memory.total if machine.memory is not None else None)]


def _memory_available(machine: MachineReading) -> list[tuple[tuple[str, ...], float | None]]:
    return [((), machine.memory.available if machine.memory is not None else None)]


def _memory_states(machine: MachineReading) -> list[tuple[tuple[str, ...], float | None]]:
    return [((state,), size) for state, size in machine.memory.states.items()] if machine.memory is not None else []


def _swap(machine: MachineReading) -> list[tuple[tuple[str, ...], float | None]]:
    return [(("used",), machine.memory.swap_used if machine.memory is not None else None)]


MACHINE_METRICS: Final = (
    NumberMetric(
        semconv.RANK_INFO,
        MetricKind.INFO,
        Unit.NONE,
        "The node and the GPU that a rank runs on, to join its series with those of its machine.",
        (*_RANK, LABEL_HOST, semconv.LABEL_DEVICE),
        rank_info,
    ),
    NumberMetric(
        semconv.JOB_INFO,
        MetricKind.INFO,
        Unit.NONE,
        "What launchers and trackers call the job; no series if its environment says nothing.",
        (
            LABEL_RUN,
            semconv.LABEL_SLURM_JOB_ID,
            semconv.LABEL_SLURM_JOB_NAME,
            semconv.LABEL_K8S_NAMESPACE,
            semconv.LABEL_K8S_POD,
            semconv.LABEL_RAY_JOB_ID,
            semconv.LABEL_ELASTIC_RUN_ID,
            semconv.LABEL_RESTART_COUNT,
            semconv.LABEL_MLFLOW_RUN_ID,
            semconv.LABEL_WANDB_RUN_ID,
        ),
        job_info,
    ),
    NumberMetric(
        semconv.PROCESS_MEMORY,
        MetricKind.UP_DOWN,
        Unit.BYTES,
        "Physical memory of the rank's process, shared memory included; where its pid is valid for the agent.",
        _RANK,
        of_process(lambda process: process.resident),
    ),
    NumberMetric(
        semconv.PROCESS_VIRTUAL,
        MetricKind.UP_DOWN,
        Unit.BYTES,
        "Address space of the rank's process.",
        _RANK,
        of_process(lambda process: process.virtual),
    ),
    NumberMetric(
        semconv.PROCESS_CPU,
        MetricKind.COUNTER,
        Unit.SECONDS,
        "Processor time of the rank's process, all threads together.",
        (*_RANK, semconv.LABEL_CPU_MODE),
        process_cpu,
    ),
    NumberMetric(
        semconv.PROCESS_THREADS,
        MetricKind.UP_DOWN,
        Unit.THREADS,
        "Threads of the rank's process.",
        _RANK,
        of_process(lambda process: process.threads),
    ),
    NumberMetric(
        semconv.CONTAINER_MEMORY,
        MetricKind.UP_DOWN,
        Unit.BYTES,
        "Memory of the cgroup of the run's first rank on the node, page cache included.",
        (LABEL_RUN, LABEL_HOST),
        of_cgroups(lambda cgroup: cgroup.memory),
    ),
    NumberMetric(
        semconv.CGROUP_MEMORY_LIMIT,
        MetricKind.UP_DOWN,
        Unit.BYTES,
        "What that cgroup may use; no series without a limit.",
        (LABEL_RUN, LABEL_HOST),
        of_cgroups(lambda cgroup: cgroup.memory_limit),
    ),
    NumberMetric(
        semconv.CGROUP_PRESSURE,
        MetricKind.COUNTER,
        Unit.SECONDS,
        "Time in which tasks of that cgroup waited for a resource, as on the node; in cgroups of version 2 only.",
        (LABEL_RUN, LABEL_HOST, semconv.LABEL_RESOURCE, semconv.LABEL_SEVERITY),
        cgroup_pressures,
    ),
    NumberMetric(
        semconv.PRESSURE,
        MetricKind.COUNTER,
        Unit.SECONDS,
        "Time in which a task of the node waited for a resource (some), or all that were not idle did (full): the "
        "kernel's pressure stall information.",
        (LABEL_HOST, semconv.LABEL_RESOURCE, semconv.LABEL_SEVERITY),
        of_machine(pressures),
    ),
    NumberMetric(
        semconv.SYSTEM_MEMORY_LIMIT,
        MetricKind.UP_DOWN,
        Unit.BYTES,
        "Memory of the node.",
        _NODE,
        of_machine(_memory_total),
    ),
    NumberMetric(
        semconv.SYSTEM_MEMORY,
        MetricKind.UP_DOWN,
        Unit.BYTES,
        "Memory of the node by what it is used for.",
        (LABEL_HOST, semconv.LABEL_MEMORY_STATE),
        of_machine(_memory_states),
    ),
    NumberMetric(
        semconv.SYSTEM_MEMORY_AVAILABLE,
        MetricKind.UP_DOWN,
        Unit.BYTES,
        "Memory of the node that programs can still get without swapping, as the kernel estimates it.",
        _NODE,
        of_machine(_memory_available),
    ),
    NumberMetric(
        semconv.SYSTEM_SWAP,
        MetricKind.UP_DOWN,
        Unit.BYTES,
        "Memory of the node that is swapped out.",
        (LABEL_HOST, semconv.LABEL_PAGING_STATE),
        of_machine(_swap),
    ),
    NumberMetric(
        semconv.SYSTEM_CPU,
        MetricKind.COUNTER,
        Unit.SECONDS,
        "Processor time of the node, all cores together.",
        (LABEL_HOST, semconv.LABEL_CPU_MODE),
        of_machine(lambda machine: (((mode,), seconds) for mode, seconds in machine.cpu_s.items())),
    ),
    NumberMetric(
        semconv.SYSTEM_NETWORK,
        MetricKind.COUNTER,
        Unit.BYTES,
        "Bytes of the node's network interfaces: those of devices, or in a container all, at most 16.",
        (*_INTERFACE, semconv.LABEL_DIRECTION),
        of_machine(interface_bytes),
    ),
    NumberMetric(
        semconv.SYSTEM_NETWORK_ERRORS,
        MetricKind.COUNTER,
        Unit.ERRORS,
        "Packets that these interfaces received or sent with an error.",
        _INTERFACE,
        of_interfaces(lambda one: one.errors),
    ),
    NumberMetric(
        semconv.SYSTEM_NETWORK_DROPPED,
        MetricKind.COUNTER,
        Unit.PACKETS,
        "Packets that these interfaces dropped.",
        _INTERFACE,
        of_interfaces(lambda one: one.dropped),
    ),
    NumberMetric(
        semconv.HW_NETWORK,
        MetricKind.COUNTER,
        Unit.BYTES,
        "Bytes of InfiniBand and RoCE ports, RDMA included, at most 32 ports.",
        (*_DEVICE, semconv.LABEL_DIRECTION),
        of_machine(port_bytes),
    ),
    NumberMetric(
        semconv.HW_NETWORK_LIMIT,
        MetricKind.UP_DOWN,
        Unit.BYTES_PER_SECOND,
        "Speed of network interfaces and InfiniBand ports, where they say it; virtual ones do not.",
        _DEVICE,
        of_machine(link_limits),
    ),
    NumberMetric(
        semconv.HW_ERRORS,
        MetricKind.COUNTER,
        Unit.ERRORS,
        "Errors of GPUs (ecc_corrected, ecc_uncorrected since the driver was loaded, xid_79 and so on since the agent "
        "has run) and of InfiniBand ports (link_downed, symbol_error, port_rcv_errors, port_xmit_discards).",
        (*_DEVICE, semconv.LABEL_ERROR_TYPE),
        of_machine(hardware_errors),
    ),
    NumberMetric(
        semconv.GPU_LOST,
        MetricKind.GAUGE,
        Unit.NONE,
        "1 if the driver has lost the GPU, else 0. Metrics of GPUs need `nvidia-ml-py`.",
        _DEVICE,
        of_gpus(lambda gpu: int(gpu.is_lost)),
    ),
    NumberMetric(
        semconv.GPU_MEMORY,
        MetricKind.UP_DOWN,
        Unit.BYTES,
        "Memory of the GPU that is in use, by all processes.",
        _DEVICE,
        of_gpus(lambda gpu: gpu.memory_used),
    ),
    NumberMetric(
        semconv.GPU_MEMORY_LIMIT,
        MetricKind.UP_DOWN,
        Unit.BYTES,
        "Memory of the GPU.",
        _DEVICE,
        of_gpus(lambda gpu: gpu.memory_total),
    ),
    NumberMetric(
        semconv.GPU_IO,
        MetricKind.COUNTER,
        Unit.BYTES,
        "Bytes over the GPU's NVLinks.",
        (*_DEVICE, semconv.LABEL_DIRECTION),
        of_machine(gpu_bytes),
    ),
    NumberMetric(
        semconv.HW_POWER,
        MetricKind.GAUGE,
        Unit.WATTS,
        "Power that the GPU draws.",
        _DEVICE,
        of_gpus(lambda gpu: gpu.power_w),
    ),
    NumberMetric(
        semconv.GPU_THROTTLED,
        MetricKind.GAUGE,
        Unit.NONE,
        "1 while the GPU's clocks are held down for a reason: its power limit (power_cap), heat (software_thermal, "
        "hardware_thermal), the power supply (power_brake), or heat or power (hardware_slowdown).",
        (*_DEVICE, semconv.LABEL_REASON),
        of_machine(throttling),
    ),
)
