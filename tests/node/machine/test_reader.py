"""What is read of /proc and /sys: symptoms of good files, and nothing of bad ones."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_torchdist.model.rank_state.symptoms import Symptom, SymptomKind
from otel_torchdist.node.machine.reader import (
    KEPT_NS,
    MAX_PORTS,
    ErrorCounters,
    MachineReader,
    WatchedRank,
    read_link_downs,
    stalled_share,
)
from otel_torchdist.tape.identity import TapeIdentity, identify
from tests.node.machine.trees import PSI, Tree

NOW = 1_000_000_000_000


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A machine."""
    return Tree(tmp_path).machine()


@pytest.fixture
def identity() -> TapeIdentity:
    """The tape of a rank that this process is."""
    return identify(0, 0, 1, 64)


def watched(identity: TapeIdentity) -> WatchedRank:
    """A rank of this user."""
    return WatchedRank(Path("/nonexistent/one.tape"), identity, os.geteuid())


def test_machine_that_shows_nothing(tmp_path: Path) -> None:
    """Without any of the files there is nothing, and no error."""
    assert MachineReader(tmp_path).read([], NOW).symptoms == ()


@pytest.mark.parametrize("text", ["", "some", "\0" * 100, "full avg10=nan avg60=0 avg300=0 total=1\n", "ÿ" * 50, "-1"])
def test_broken_files(tree: Tree, text: str) -> None:
    """Files that hold something else are as good as missing ones."""
    for file in tree.root.rglob("*"):
        if file.is_file():
            file.write_text(text, encoding="latin-1", errors="replace")
    assert MachineReader(tree.root).read([], NOW).symptoms == ()
    assert read_link_downs(tree.root / "sys") == {}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(codec="utf-8")))
def test_any_pressure_file(tmp_path: Path, text: str) -> None:
    """Whatever a pressure file holds, its share is a share."""
    file = tmp_path / "memory"
    file.write_text(PSI[:90] + text)
    assert 0 <= stalled_share(file) <= 1


def test_pressure_of_older_kernels(tmp_path: Path) -> None:
    """A file without a line `full` says nothing about everything; with one, the share of the last 10 s counts."""
    file = tmp_path / "memory"
    file.write_text(PSI)
    assert stalled_share(file) == 0.63
    file.write_text(PSI.partition("\n")[0])
    assert stalled_share(file) == 0.0


def test_bounded_ports(tree: Tree) -> None:
    """Of very many ports the first few are read."""
    for number in range(100):
        tree.port("mlx5_0", number, downed=number)
    found = read_link_downs(tree.root / "sys")
    assert len(found) == MAX_PORTS
    assert found["mlx5_0/10"] == 10


def test_counters_that_begin_anew() -> None:
    """After a reset a counter has grown by what has come since; a counter that is gone is forgotten."""
    counters = ErrorCounters()
    grown = [counters.grown({"a": count}) for count in (2000, 2500, 10, 15, 15)]
    assert grown == [{}, {"a": 500}, {"a": 10}, {"a": 5}, {}]
    assert counters.grown({}) == {}
    assert counters.grown({"a": 20}) == {}


def cgroup(tree: Tree, identity: TapeIdentity) -> str:
    """Put the rank into a cgroup of version 2; returns its folder."""
    tree.write(f"proc/{identity.pid}/cgroup", "0::/kubepods/pod1\n")
    tree.write("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    folder = "sys/fs/cgroup/kubepods/pod1"
    tree.write(f"{folder}/memory.pressure", PSI)
    tree.write(f"{folder}/cgroup.type", "domain\n")
    return folder


def test_cgroup_of_a_rank(tree: Tree, identity: TapeIdentity) -> None:
    """In a container it is the container's pressure that counts, and it is a symptom of the rank."""
    cgroup(tree, identity)
    found = MachineReader(tree.root).read([watched(identity)], NOW)
    assert found.symptoms_of(identity.nonce) == (Symptom(SymptomKind.CGROUP_MEMORY, NOW, 0.63), *found.symptoms)
    assert found.symptoms_of(1) == found.symptoms


@pytest.mark.parametrize("change", [{"pid_start_ticks": 5}, {"pid_namespace": 1}, {"boot_id": 1}])
def test_pid_that_is_not_the_ranks(tree: Tree, identity: TapeIdentity, change: dict[str, int]) -> None:
    """A pid that is another process's by now, or of another namespace or boot, says nothing about a rank."""
    cgroup(tree, identity)
    other = dataclasses.replace(identity, **change)
    assert MachineReader(tree.root).read([watched(other)], NOW).symptoms_of_cgroups == {identity.nonce: ()}


def test_forged_pid(tree: Tree, identity: TapeIdentity) -> None:
    """Another user's tape cannot make a service show the cgroups of third parties."""
    cgroup(tree, identity)
    forged = WatchedRank(Path("/nonexistent/one.tape"), identity, os.geteuid() + 1)
    assert MachineReader(tree.root).read([forged], NOW).symptoms_of_cgroups == {identity.nonce: ()}


def test_root_of_all_cgroups(tree: Tree, identity: TapeIdentity) -> None:
    """It shows the whole node, which is not what a rank's cgroup lacks."""
    folder = cgroup(tree, identity)
    (tree.root / folder / "cgroup.type").unlink()
    assert MachineReader(tree.root).read([watched(identity)], NOW).symptoms_of_cgroups == {identity.nonce: ()}


def test_symptoms_of_the_node(tree: Tree) -> None:
    """Shortage of memory and slow storage are remembered for a while; a link that goes down counts when it does."""
    reader = MachineReader(tree.root)
    assert {one.kind for one in reader.read([], NOW).symptoms} == {SymptomKind.NODE_MEMORY, SymptomKind.STORAGE}
    calm = PSI.replace("63.00", "1.00")
    for resource in ("memory", "io"):
        tree.write(f"proc/pressure/{resource}", calm)
    tree.port("mlx5_0", 1, downed=1)
    later = reader.read([], NOW + KEPT_NS + 1)
    assert later.symptoms == (Symptom(SymptomKind.LINK_DOWN, NOW + KEPT_NS + 1, detail="mlx5_0/1"),)


def test_link_that_went_down_long_ago(tree: Tree) -> None:
    """What a port has counted before the first reading is no symptom."""
    tree.port("mlx5_0", 1, downed=17)
    tree.write("proc/pressure/memory", "")
    tree.write("proc/pressure/io", "")
    assert MachineReader(tree.root).read([], NOW).symptoms == ()
