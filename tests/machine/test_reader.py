"""What is read of /proc and /sys: right numbers of good files, and nothing of bad ones."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_torchdist.machine.links import MAX_INTERFACES, read_interfaces, speed_of
from otel_torchdist.machine.model import Memory, Pressure, Resource
from otel_torchdist.machine.pressure import parse_pressure
from otel_torchdist.machine.reader import MachineReader, WatchedRank
from otel_torchdist.machine.symptoms import KEPT_NS
from otel_torchdist.machine.totals import Totals
from otel_torchdist.model.symptoms import Symptom, SymptomKind
from otel_torchdist.tape.identity import TapeIdentity, identify
from tests.machine.trees import NET_DEV, PSI, Tree

NOW = 1_000_000_000_000
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A machine."""
    return Tree(tmp_path).machine()


@pytest.fixture
def identity() -> TapeIdentity:
    """The tape of a rank that this process is."""
    return identify(0, 0, 1, 64)


def watched(identity: TapeIdentity, tape: Path = Path("/nonexistent/one.tape")) -> WatchedRank:
    """A rank of this user."""
    return WatchedRank(tape, identity, os.geteuid())


def test_whole_machine(tree: Tree) -> None:
    """Memory in bytes, pressure, processor time by mode, physical interfaces with speed, and ports in bytes."""
    found = MachineReader(tree.root).read([], NOW)
    states = {"used": 600 << 10, "free": 100 << 10, "buffers": 50 << 10, "cached": 250 << 10}
    assert found.memory == Memory(1000 << 10, 300 << 10, states, 100 << 10)
    assert found.pressure == dict.fromkeys(Resource, Pressure(0.7, 0.63, 6325.500611, 2.5))
    ticks = {"user": 100, "nice": 200, "system": 300, "idle": 400, "iowait": 500, "interrupt": 67, "steal": 8}
    assert found.cpu_s == pytest.approx({mode: count * TICK_S for mode, count in ticks.items()})
    [interface] = found.interfaces
    assert dataclasses.astuple(interface) == ("eth0", 123456789012, 2000, 4, 6, 12.5e9)
    [port] = found.ports
    assert dataclasses.astuple(port) == ("mlx5_0/1", 4000, 8000, {"link_downed": 0}, 50e9)


def test_machine_that_shows_nothing(tmp_path: Path) -> None:
    """Without any of the files there is nothing, and no error."""
    found = MachineReader(tmp_path).read([], NOW)
    assert (found.memory, found.pressure, found.cpu_s, found.interfaces, found.ports) == (None, {}, {}, (), ())


@pytest.mark.parametrize("text", ["", "some", "\0" * 100, "some avg10=nan avg60=0 avg300=0 total=1\n", "ÿ" * 50, "-1"])
def test_broken_files(tree: Tree, text: str) -> None:
    """Files that hold something else are as good as missing ones."""
    files = [path for path in tree.root.rglob("*") if path.is_file() and path.name != "vendor"]
    for file in files:
        file.write_text(text, encoding="latin-1", errors="replace")
    found = MachineReader(tree.root).read([], NOW)
    assert (found.memory, found.pressure, found.cpu_s, found.interfaces, found.ports) == (None, {}, {}, (), ())


@given(st.text())
def test_any_pressure_file(text: str) -> None:
    """Whatever a pressure file holds, its shares are shares."""
    found = parse_pressure(PSI[:40] + text)
    assert found is None or 0 <= found.full_share <= 1


def test_pressure_of_older_kernels() -> None:
    """Before Linux 5.13 there is no line `full` for processors."""
    assert parse_pressure(PSI.partition("\n")[0]) == Pressure(0.7, 0.0, 6325.500611, 0.0)


@pytest.mark.parametrize("speed", ["-1\n", "0\n", "", "fast\n"])
def test_interface_without_a_speed(tree: Tree, speed: str) -> None:
    """Virtual cards say -1 or nothing."""
    tree.interface("eth0", speed)
    assert speed_of("eth0", tree.root / "sys") is None


def test_interfaces_of_a_container(tree: Tree) -> None:
    """A container has only virtual interfaces, so these count; of a thousand the first few."""
    tree.write("proc/net/dev", NET_DEV + "".join(f"veth{one}: {'1 ' * 16}\n" for one in range(1000)))
    proc, sys = tree.root / "proc", tree.root / "sys"
    assert list(read_interfaces(proc, sys)) == ["eth0"]
    (sys / "class/net/eth0/device/vendor").unlink()
    (sys / "class/net/eth0/device").rmdir()
    assert len(read_interfaces(proc, sys)) == MAX_INTERFACES


def test_counters_that_begin_anew(tree: Tree) -> None:
    """After a reset, or a wrap, totals go on growing by what has come since; they never fall."""
    reader = MachineReader(tree.root)
    sent = []
    for count in (2000, 2500, 10, 15):
        tree.port("mlx5_0", 1, received=0, sent=count)
        [port] = reader.read([], NOW).ports
        sent.append(port.transmitted)
    assert sent == [8000, 10000, 10040, 10060]


def test_counters_of_devices_that_are_gone() -> None:
    """A counter that is not read any more is forgotten; one that comes back begins anew."""
    totals = Totals()
    assert (totals.total(("a",), 7), totals.total(("b",), 1)) == (7, 1)
    totals.forget_unread()
    totals.total(("b",), 2)
    totals.forget_unread()
    assert (totals.growth(("a",), 3), totals.growth(("b",), 5)) == (0, 3)


def test_process_of_a_rank(tree: Tree, identity: TapeIdentity) -> None:
    """Memory in bytes, times in seconds and threads, whatever the program calls itself."""
    tree.process(identity.pid, identity.pid_start_ticks)
    figures = MachineReader(tree.root).read([watched(identity)], NOW).ranks[identity.nonce].process
    assert figures is not None
    assert (figures.resident, figures.virtual, figures.threads) == (300 * PAGE, 1000 * PAGE, 25)
    assert (figures.user_s, figures.system_s) == pytest.approx((150 * TICK_S, 50 * TICK_S))


@pytest.mark.parametrize("change", [{"pid_start_ticks": 5}, {"pid_namespace": 1}, {"boot_id": 1}])
def test_pid_that_is_not_the_ranks(tree: Tree, identity: TapeIdentity, change: dict[str, int]) -> None:
    """A pid that is another process's by now, or of another namespace or boot, says nothing about a rank."""
    tree.process(identity.pid, identity.pid_start_ticks)
    other = dataclasses.replace(identity, **change)
    assert MachineReader(tree.root).read([watched(other)], NOW).ranks[identity.nonce].process is None


def test_forged_pid(tree: Tree, identity: TapeIdentity) -> None:
    """Another user's tape cannot make a service show the processes of third parties."""
    tree.process(identity.pid, identity.pid_start_ticks)
    forged = WatchedRank(Path("/nonexistent/one.tape"), identity, os.geteuid() + 1)
    assert MachineReader(tree.root).read([forged], NOW).ranks[identity.nonce].process is None


def cgroup(tree: Tree, identity: TapeIdentity) -> str:
    """Put the rank into a cgroup of version 2; returns its folder."""
    tree.process(identity.pid, identity.pid_start_ticks)
    tree.write(f"proc/{identity.pid}/cgroup", "0::/kubepods/pod1\n")
    tree.write("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    folder = "sys/fs/cgroup/kubepods/pod1"
    tree.write(f"{folder}/memory.current", "7000\n")
    tree.write(f"{folder}/memory.max", "8000\n")
    tree.write(f"{folder}/memory.pressure", PSI)
    tree.write(f"{folder}/cgroup.type", "domain\n")
    return folder


def test_cgroup_of_a_rank(tree: Tree, identity: TapeIdentity) -> None:
    """In a container it is the container's memory, limit and pressure that count, and they are symptoms of the rank."""
    cgroup(tree, identity)
    found = MachineReader(tree.root).read([watched(identity)], NOW)
    figures = found.ranks[identity.nonce].cgroup
    assert figures is not None
    assert (figures.memory, figures.memory_limit) == (7000, 8000)
    assert figures.pressure == {Resource.MEMORY: Pressure(0.7, 0.63, 6325.500611, 2.5)}
    assert Symptom(SymptomKind.CGROUP_MEMORY, NOW, 0.63) in found.symptoms_of(identity.nonce)
    assert found.symptoms_of(1) == found.symptoms


def test_root_of_all_cgroups(tree: Tree, identity: TapeIdentity) -> None:
    """It shows the whole node, which is not what a rank's cgroup lacks; and no limit is no number."""
    folder = cgroup(tree, identity)
    (tree.root / folder / "cgroup.type").unlink()
    assert MachineReader(tree.root).read([watched(identity)], NOW).ranks[identity.nonce].cgroup is None
    tree.write(f"{folder}/cgroup.type", "domain\n")
    tree.write(f"{folder}/memory.max", "max\n")
    figures = MachineReader(tree.root).read([watched(identity)], NOW).ranks[identity.nonce].cgroup
    assert figures is not None and figures.memory_limit is None


def test_symptoms_of_the_node(tree: Tree) -> None:
    """Shortage of memory and slow storage are remembered for a while; a link that goes down counts when it does."""
    reader = MachineReader(tree.root)
    assert {one.kind for one in reader.read([], NOW).symptoms} == {SymptomKind.NODE_MEMORY, SymptomKind.STORAGE}
    calm = PSI.replace("63.00", "1.00")
    for resource in ("memory", "io"):
        tree.write(f"proc/pressure/{resource}", calm)
    tree.port("mlx5_0", 1, received=0, sent=0, downed=1)
    later = reader.read([], NOW + KEPT_NS + 1)
    assert later.symptoms == (Symptom(SymptomKind.LINK_DOWN, NOW + KEPT_NS + 1, detail="mlx5_0/1"),)


def test_link_that_went_down_long_ago(tree: Tree) -> None:
    """What a port has counted before the first reading is no symptom."""
    tree.port("mlx5_0", 1, received=0, sent=0, downed=17)
    tree.write("proc/pressure/memory", "")
    tree.write("proc/pressure/io", "")
    assert MachineReader(tree.root).read([], NOW).symptoms == ()
