"""A tape's identity block, and the properties of this process that it records."""

from __future__ import annotations

import os
import socket
import struct
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.errors import TapeError
from otel_torchdist.formats import TAPE
from otel_torchdist.model.kinds import Kernel
from otel_torchdist.model.text import readable
from otel_torchdist.tape import layout

_BLOCK: Final = struct.Struct("=QIIQQQQQQqqqQQQ64sQQ40sQQ128s")
"""Zeros follow the block: append new fields, which then read as zero in tapes of older versions."""
MAX_WORLD_BYTES: Final = 128
_CHECKSUM: Final = struct.Struct("=Q")
_CHECKSUM_OFFSET: Final = layout.IDENTITY_SIZE - _CHECKSUM.size
_KERNELS: Final = {int(kernel): kernel for kernel in Kernel}
_LOW_64: Final = (1 << 64) - 1
_CLOCK_TRIES: Final = 5
_CLOCK_NEAR_NS: Final = 20_000


def identify(
    rank: int,
    local_rank: int,
    world_size: int,
    capacity: int,
    parent: int = 0,
    kernel: Kernel = Kernel.UNKNOWN,
    torch: str = "",
    synchronized: bool = False,
    checks_values: bool = False,
    world: str = "",
) -> TapeIdentity:
    """Return the identity of a new tape of this process. Its ring holds `capacity` records, or one more."""
    monotonic_ns, realtime_ns = clock_pair()
    return TapeIdentity(
        nonce=int.from_bytes(os.urandom(8), "little") | 1,
        pid=os.getpid(),
        pid_start_ticks=process_start_ticks(os.getpid()) or 0,
        pid_namespace=pid_namespace(),
        boot_id=boot_id(),
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        capacity=layout.ring_capacity(capacity),
        monotonic_ns=monotonic_ns,
        realtime_ns=realtime_ns,
        host=socket.gethostname(),
        parent=parent,
        kernel=kernel,
        torch=torch,
        synchronized=synchronized,
        checks_values=checks_values,
        world=world,
    )


def encode_identity(identity: TapeIdentity) -> bytes:
    """Encode the first 1,024 bytes of a tape."""
    block = _BLOCK.pack(
        layout.MAGIC,
        layout.VERSION,
        _BLOCK.size,
        identity.nonce,
        identity.pid,
        identity.pid_start_ticks,
        identity.pid_namespace,
        identity.boot_id >> 64,
        identity.boot_id & _LOW_64,
        identity.rank,
        identity.local_rank,
        identity.world_size,
        identity.capacity,
        identity.monotonic_ns,
        identity.realtime_ns,
        identity.host.encode("utf-8", "replace")[:64],
        identity.parent,
        identity.kernel,
        identity.torch.encode("utf-8", "replace")[:40],
        identity.synchronized,
        identity.checks_values,
        identity.world.encode("utf-8", "replace")[:MAX_WORLD_BYTES],
    )
    padded = block.ljust(_CHECKSUM_OFFSET, b"\0")
    return padded + _CHECKSUM.pack(zlib.crc32(padded))


def decode_identity(data: bytes | memoryview, where: str) -> TapeIdentity:
    """Decode an identity block.

    Args:
        data: The tape, or at least its first 1,024 bytes.
        where: The tape's path, for the error.

    Raises:
        OtherFormatError: The tape has another format.
        TapeError: The block is too short, not a tape's, or damaged.
    """
    if len(data) < layout.IDENTITY_SIZE:
        raise TapeError(f"{where}: truncated: {len(data)} bytes are too few for a tape")
    magic, version, _, nonce, pid, ticks, namespace, boot_high, boot_low, *fields = _BLOCK.unpack_from(data)
    (
        rank,
        local_rank,
        world_size,
        capacity,
        monotonic_ns,
        realtime_ns,
        host,
        parent,
        kernel,
        torch,
        synchronized,
        checks,
        world,
    ) = fields
    if magic != layout.MAGIC:
        raise TapeError(f"{where}: not a tape, or from a machine with another byte order")
    TAPE.check(version, where)
    (checksum,) = _CHECKSUM.unpack_from(data, _CHECKSUM_OFFSET)
    if checksum != zlib.crc32(data[:_CHECKSUM_OFFSET]):
        raise TapeError(f"{where}: damaged: the identity block does not match its checksum")
    if not layout.is_ring_capacity(capacity):
        raise TapeError(f"{where}: damaged: a ring cannot hold {capacity} records")
    is_rank = -1 <= min(rank, local_rank, world_size) <= max(rank, local_rank, world_size) <= layout.MAX_RANKS
    if pid > layout.MAX_COUNT or not is_rank:
        raise TapeError(f"{where}: damaged: rank {rank} of {world_size} in process {pid} is impossible")
    if max(monotonic_ns, realtime_ns) > layout.MAX_TIME_NS:
        raise TapeError(f"{where}: damaged: its clocks are out of range")
    return TapeIdentity(
        nonce=nonce,
        pid=pid,
        pid_start_ticks=ticks,
        pid_namespace=namespace,
        boot_id=boot_high << 64 | boot_low,
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        capacity=capacity,
        monotonic_ns=monotonic_ns,
        realtime_ns=realtime_ns,
        host=_text(host),
        parent=parent,
        kernel=_KERNELS.get(kernel, Kernel.UNKNOWN),
        torch=_text(torch),
        synchronized=bool(synchronized),
        checks_values=bool(checks),
        world=_text(world),
    )


def _text(field: bytes) -> str:
    return readable(field.rstrip(b"\0").decode("utf-8", "replace"))


def clock_pair() -> tuple[int, int]:
    """Read the monotonic clock and the wall clock at the same time, in nanoseconds.

    Losing the CPU or the GIL between two reads would look like a step of the wall clock. So the wall clock is read
    between two reads of the monotonic clock, and all three are repeated until the two are close.
    """
    best = _read_clocks()
    for _ in range(_CLOCK_TRIES):
        if best[0] < _CLOCK_NEAR_NS:
            break
        best = min(best, _read_clocks())
    return best[1], best[2]


def _read_clocks() -> tuple[int, int, int]:
    """Return the duration of the reads, the monotonic clock at their midpoint, and the wall clock."""
    before, realtime, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
    return after - before, (before + after) // 2, realtime


def process_start_ticks(pid: int) -> int | None:
    """Return the start of a process in this PID namespace, in clock ticks since boot; None if it does not exist."""
    state = process_state(pid)
    return None if state is None else state[1]


def process_began_ns(identity: TapeIdentity) -> int:
    """Return the start time of a tape's process, by the monotonic clock; the creation of the tape if unknown.

    The import of torch delays the creation by seconds.
    """
    if not identity.pid_start_ticks or not shares_pids(identity):
        return identity.monotonic_ns
    asleep_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    began_ns = identity.pid_start_ticks * (1_000_000_000 // os.sysconf("SC_CLK_TCK")) - asleep_ns
    return min(max(began_ns, 0), identity.monotonic_ns)


def process_state(pid: int) -> tuple[str, int] | None:
    """Return a process's state letter and its `process_start_ticks`; None if it does not exist."""
    try:
        fields = stat_fields(pid)
    except OSError:
        return None
    return fields[0].decode(), int(fields[19])


def stat_fields(pid: int) -> list[bytes]:
    """Return the fields of `/proc/<pid>/stat`, from the third, the state letter, on.

    Raises:
        OSError: The process does not exist.
    """
    stat = Path(f"/proc/{pid}/stat").read_bytes()
    # The second field is the program's name in parentheses. It may contain spaces and parentheses.
    return stat[stat.rindex(b")") + 2 :].split()


def dead_status(pid: int, start_ticks: int) -> int | None:
    """Return the wait status of a zombie process; None if it cannot be read.

    The kernel reports it only to processes with permission to ptrace the zombie. Others read 0.

    Args:
        pid: The process.
        start_ticks: Its `process_start_ticks`.
    """
    try:
        may_see = os.geteuid() in (0, os.stat(f"/proc/{pid}").st_uid)
        fields = stat_fields(pid)
    except OSError:
        return None
    if not may_see or fields[0] != b"Z" or int(fields[19]) != start_ticks:
        return None
    return int(fields[49])


def shares_pids(identity: TapeIdentity) -> bool:
    """Return whether the writer's pid is valid in this process: same PID namespace and same boot."""
    namespace_and_boot = pid_namespace(), boot_id()
    return all(namespace_and_boot) and namespace_and_boot == (identity.pid_namespace, identity.boot_id)


def pid_namespace() -> int:
    """Return the inode of this process's PID namespace; 0 if /proc does not show it."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def boot_id() -> int:
    """Return the kernel's boot id as a number; 0 if /proc does not show it."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return 0
    return int(text.strip().replace("-", ""), 16)


@dataclass(frozen=True, slots=True)
class TapeIdentity:
    """Identity of a tape's writer, stored once when the tape is created.

    Attributes:
        nonce: 64 random bits, unique to the tape.
        pid: The writer's process id inside its own PID namespace.
        pid_start_ticks: The process's start time as in `/proc/<pid>/stat`. It distinguishes a recycled pid.
        pid_namespace: Inode of the writer's PID namespace.
        boot_id: The kernel's boot id, 128 bits. Pids and monotonic times are comparable only within a boot.
        rank: Global rank.
        local_rank: Rank on this node; 0 if the launcher does not state it.
        world_size: Ranks of the default group.
        capacity: Number of records in the ring.
        monotonic_ns: Monotonic clock at creation.
        realtime_ns: Wall clock at creation.
        parent: Nonce of the tape of the rank that started this process as its helper; 0 for none.
        kernel: The recording kernel, native or Python.
        torch: Version of torch; '' if not recorded.
        synchronized: Whether the instrumentation waits for devices before and after collectives.
        checks_values: Whether the instrumentation checks that all inputs of operations are finite.
        world: Name of the standalone process group's world that defines rank and world size, if the process was in no
            other world when the tape was created; '' for the default group.
    """

    nonce: int
    pid: int
    pid_start_ticks: int
    pid_namespace: int
    boot_id: int
    rank: int
    local_rank: int
    world_size: int
    capacity: int
    monotonic_ns: int
    realtime_ns: int
    host: str
    parent: int = 0
    kernel: Kernel = Kernel.UNKNOWN
    torch: str = ""
    synchronized: bool = False
    checks_values: bool = False
    world: str = ""


def ranks_by_recorder(identities: Iterable[TapeIdentity]) -> dict[tuple[Kernel, str], list[int]]:
    """Group ranks, ascending, by recorder and torch version."""
    by_recorder: dict[tuple[Kernel, str], list[int]] = {}
    for identity in sorted(identities, key=lambda identity: identity.rank):
        by_recorder.setdefault((identity.kernel, identity.torch), []).append(identity.rank)
    return by_recorder
