"""Expectations of the families of the machine: the kernel's own figures, and nothing for absent hardware."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from otel_torchdist import semconv
from tests.figures.expectations import Check, by_rank, within
from tests.figures.machine import MachineCounters
from tests.figures.running import Run, Series
from tests.figures.witness import Witness

HOST: Final = socket.gethostname()
NETWORKS: Final = Path("/sys/class/net")
ROOM: Final = 64 << 20
HAS_PORTS: Final = Path("/sys/class/infiniband").is_dir()
ROUNDED: Final = 0.02
"""Clock ticks are hundredths of a second."""
HAS_GPUS: Final = Path("/dev/nvidia0").exists()


def between(
    name: str, read: Callable[[MachineCounters], Series], all_shown: bool = True, slack: float = ROUNDED
) -> Check:
    """Expect counters between what the kernel said before the run and after it, but for some slack."""

    def check(run: Run) -> None:
        before, after = (read(one) for one in run.machine)
        found = run.final.series(name)
        assert found, "nothing is shown"
        assert found.keys() == after.keys() if all_shown else found.keys() <= after.keys()
        assert {key for key, value in found.items() if not before[key] - slack <= value <= after[key] + slack} == set()

    return check


def at_most(name: str, most: Callable[[Run], Series], lives: bool = False) -> Check:
    """Expect a quantity above 0 and at most this."""
    return within(name, lambda run: dict.fromkeys(most(run), 1.0), most, lives=lives)


def without(name: str, has_it: bool) -> Check:
    """Expect no series on a machine without such devices."""

    def check(run: Run) -> None:
        if not has_it:
            assert run.final.series(name) == {}

    return check


def memory(name: str) -> Callable[[Run], Series]:
    """Read a line of /proc/meminfo."""
    return lambda run: {(HOST,): run.machine[1].memory[name]}


def cpu(read: MachineCounters) -> Series:
    """Sum up interrupts, as the metric does."""
    modes = dict(read.cpu_s)
    modes["interrupt"] = modes.pop("irq") + modes.pop("softirq")
    return {(HOST, mode): seconds for mode, seconds in modes.items()}


def most_bytes(witness: Witness, name: str) -> int:
    """Return a rank's peak at its last call, with room for what it does to print its report."""
    return (witness.report["process"][name] << 10) + ROOM


def by_interface(counts: Mapping[str, int]) -> Series:
    """Make series of the node's interfaces."""
    return {(HOST, interface): count for interface, count in counts.items()}


def on_host(run: Run) -> Series:
    """Return where the ranks run, without a GPU."""
    return {(str(one.rank), HOST, ""): 1 for one in run.witnesses}


def limits(run: Run) -> None:
    """Links are as fast as the kernel says."""
    for (_, link), value in run.final.series(semconv.HW_NETWORK_LIMIT).items():
        if (NETWORKS / link).exists():
            assert value == int((NETWORKS / link / "speed").read_text()) * 1_000_000 / 8


def memory_states(run: Run) -> None:
    """The memory in all states is the memory of the node."""
    states = run.final.series(semconv.SYSTEM_MEMORY)
    assert {state for _, state in states} == {"used", "free", "buffers", "cached"}
    assert sum(states.values()) == run.machine[1].memory["MemTotal"]


def cgroup(name: str) -> Check:
    """Expect at most the memory of the node, or nothing where ranks are in no cgroup of their own."""

    def check(run: Run) -> None:
        assert all(0 < size <= run.machine[1].memory["MemTotal"] for size in run.live.series(name).values())

    return check


def cgroup_pressure(run: Run) -> None:
    """The cgroup's pressure is at most that of the node, where there is any."""
    node = run.live.series(semconv.PRESSURE)
    for (host, resource, severity), seconds in run.live.series(semconv.CGROUP_PRESSURE).items():
        assert seconds >= 0
        assert (host, resource, severity) in node


def processor_time(run: Run) -> None:
    """Ranks have taken processor time, and no more than their threads can have had on the machine's cores."""
    spent = sum(run.machine[1].cpu_s.values()) - sum(run.machine[0].cpu_s.values())
    found = run.live.series(semconv.PROCESS_CPU)
    assert found.keys() == {(str(one.rank), mode) for one in run.witnesses for mode in ("user", "system")}
    assert 0 < sum(found.values()) <= spent


MACHINE_FAMILIES: Final[dict[str, Check]] = {
    semconv.RANK_INFO: within(semconv.RANK_INFO, on_host, on_host, lives=True),
    semconv.PROCESS_MEMORY: at_most(semconv.PROCESS_MEMORY, by_rank(lambda one: most_bytes(one, "VmHWM")), lives=True),
    semconv.PROCESS_VIRTUAL: at_most(
        semconv.PROCESS_VIRTUAL, by_rank(lambda one: most_bytes(one, "VmPeak")), lives=True
    ),
    semconv.PROCESS_CPU: processor_time,
    semconv.PROCESS_THREADS: at_most(
        semconv.PROCESS_THREADS, by_rank(lambda one: 2 * one.report["process"]["Threads"]), lives=True
    ),
    semconv.CONTAINER_MEMORY: cgroup(semconv.CONTAINER_MEMORY),
    semconv.CGROUP_MEMORY_LIMIT: cgroup(semconv.CGROUP_MEMORY_LIMIT),
    semconv.CGROUP_PRESSURE: cgroup_pressure,
    semconv.PRESSURE: between(
        semconv.PRESSURE, lambda read: {(HOST, *key): seconds for key, seconds in read.pressure_s.items()}
    ),
    semconv.SYSTEM_MEMORY_LIMIT: within(semconv.SYSTEM_MEMORY_LIMIT, memory("MemTotal"), memory("MemTotal")),
    semconv.SYSTEM_MEMORY: memory_states,
    semconv.SYSTEM_MEMORY_AVAILABLE: at_most(semconv.SYSTEM_MEMORY_AVAILABLE, memory("MemTotal")),
    semconv.SYSTEM_SWAP: within(
        semconv.SYSTEM_SWAP, lambda _: {}, lambda run: {(HOST, "used"): run.machine[1].memory["SwapTotal"]}
    ),
    semconv.SYSTEM_CPU: between(semconv.SYSTEM_CPU, cpu, slack=1.0),  # idle and iowait may go back (proc(5))
    semconv.SYSTEM_NETWORK: between(
        semconv.SYSTEM_NETWORK, lambda read: {(HOST, *key): size for key, size in read.network.items()}, all_shown=False
    ),
    semconv.SYSTEM_NETWORK_ERRORS: between(
        semconv.SYSTEM_NETWORK_ERRORS, lambda read: by_interface(read.errors), all_shown=False
    ),
    semconv.SYSTEM_NETWORK_DROPPED: between(
        semconv.SYSTEM_NETWORK_DROPPED, lambda read: by_interface(read.dropped), all_shown=False
    ),
    semconv.HW_NETWORK: without(semconv.HW_NETWORK, HAS_PORTS),
    semconv.HW_NETWORK_LIMIT: limits,
    semconv.HW_ERRORS: without(semconv.HW_ERRORS, HAS_PORTS or HAS_GPUS),
    **{
        name: without(name, HAS_GPUS)
        for name in (
            semconv.GPU_LOST,
            semconv.GPU_MEMORY,
            semconv.GPU_MEMORY_LIMIT,
            semconv.GPU_IO,
            semconv.HW_POWER,
            semconv.GPU_THROTTLED,
        )
    },
}
