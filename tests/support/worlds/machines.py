"""Readings of a machine that has one of everything."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from otel_torchdist.machine.model import (
    CgroupFigures,
    Gpu,
    InfinibandPort,
    Interface,
    MachineReading,
    Memory,
    Pressure,
    ProcessFigures,
    RankFigures,
    Resource,
)

GPU = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
PRESSURE = dict.fromkeys(Resource, Pressure(0.5, 0.1, 12.5, 2.5))


def whole_machine(
    nonces: Iterable[int] = (), gpus: int = 1, ports: int = 1, interfaces: int = 1, xids: int = 1
) -> MachineReading:
    """A machine on which the ranks with these tapes run, all on the first GPU."""
    rank = RankFigures(ProcessFigures(4096, 8192, 1.5, 0.5, 25), CgroupFigures(7000, 8000, PRESSURE), GPU)
    gpu = Gpu(GPU, "NVIDIA H100", False, 70, 80, 612.5, ("hardware_thermal",), 7, 2, 1024, 2048)
    errors: dict[str, int] = dict.fromkeys(("link_downed", "symbol_error", "port_rcv_errors", "port_xmit_discards"), 3)
    return MachineReading(
        "node-1",
        Memory(1000, 300, {"used": 600, "free": 100, "buffers": 50, "cached": 250}, 100),
        dict.fromkeys(("user", "nice", "system", "idle", "iowait", "interrupt", "steal"), 9.5),
        PRESSURE,
        tuple(Interface(f"eth{number}", 10, 20, 1, 2, None if number else 12.5e9) for number in range(interfaces)),
        tuple(InfinibandPort(f"mlx5_{number}/1", 30, 40, errors, 50e9) for number in range(ports)),
        (gpu, *(replace(gpu, uuid=f"GPU-{number}") for number in range(1, gpus))),
        {(GPU, number): 1 for number in range(79, 79 + xids)},
        dict.fromkeys(nonces, rank),
    )
