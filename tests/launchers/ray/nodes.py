"""A cluster of Ray with two nodes, each in namespaces of its own, as `ray start` makes it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tests.launchers.ray.running import START_TIMEOUT_S, cluster_environ
from tests.launchers.started import needs
from tests.support.launch.nodes import Nodes, nodes, why_not
from tests.support.waiting import until

RAY: Final = str(Path(sys.executable).with_name("ray"))
PORT: Final = 6379
DASHBOARD: Final = "http://127.0.0.1:8265"
"""Where `ray job submit` reaches the cluster from its first node."""
# What a node mounts for itself: its memory, its files of Ray, and names of all nodes. bash ends when `ray start` does.
_NODE: Final = """\
mount --make-rprivate /
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mkdir -p /tmp/ray && mount -t tmpfs -o mode=1777 tmpfs /tmp/ray
mount --bind {folder}/hosts /etc/hosts
hostname {name}
exec {command}
"""


@dataclass
class RayNodes:
    """A running cluster.

    Attributes:
        folder: Its files.
        networks: The networks of the nodes.
        environ: The environment of its processes.
    """

    folder: Path
    networks: Nodes
    environ: dict[str, str] = field(repr=False)
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list["subprocess.Popen[bytes]"])

    def run(self, node: int, *command: str | Path, timeout_s: float = 300.0) -> str:
        """Run a command on a node, as `ssh` would; returns its output."""
        unshare = self._started[node].pid
        [first] = Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()
        entered = ["nsenter", "--all", f"--target={first}", f"--wd={self.folder}"]
        done = subprocess.run(
            [*entered, *map(str, command)],
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            check=False,
        )
        return done.stdout.decode(errors="replace")

    def start(self, node: int, *options: str) -> None:
        """Run `ray start` on a node."""
        address = self.networks.addresses[node]
        resources = ("--num-cpus=1", f"--object-store-memory={100 << 20}", "--block")
        command = " ".join((RAY, "start", f"--node-ip-address={address}", *options, *resources))
        script = _NODE.format(folder=self.folder, name=f"r{node + 1}", command=command)
        entered = ["nsenter", f"--net={self.networks.path(node)}", "unshare", "--mount", "--uts", "--ipc", "--pid"]
        with (self.folder / f"node-{node}.log").open("wb") as log:
            self._started.append(
                subprocess.Popen(
                    [*entered, "--fork", "--kill-child", "--mount-proc", "bash", "-c", script],
                    env=self.environ,
                    stdout=log,
                    stderr=log,
                )
            )

    def count(self) -> int:
        """The nodes that are alive, as `ray list nodes` has them."""
        listed = self.run(0, RAY, "list", "nodes", "--filter", "state=ALIVE")
        return listed.count("ALIVE") - listed.count("state=ALIVE")

    def logs(self) -> str:
        """The ends of the nodes' logs."""
        return "\n".join(log.read_text(errors="replace")[-1500:] for log in self.folder.glob("node-*.log"))

    def stop(self) -> None:
        """End all processes of all nodes."""
        for started in self._started:
            started.kill()
            started.wait(30)


@contextlib.contextmanager
def ray_nodes() -> Iterator[RayNodes]:
    """Start a cluster of two nodes with one processor each, and remove it afterwards."""
    needs("ray")
    if reason := why_not():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="ray") as name, nodes(2) as networks:
        folder = Path(name)
        pairs = enumerate(networks.addresses, 1)
        hosts = "".join(f"{address} r{number}\n" for number, address in pairs)
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
        head = f"{networks.addresses[0]}:{PORT}"
        environ = cluster_environ(folder) | {"RAY_ADDRESS": head, "GLOO_SOCKET_IFNAME": "eth0"}
        # A loaded machine takes longer than Ray's 30 s.
        environ |= {"RAY_raylet_start_wait_time_s": str(round(START_TIMEOUT_S))}
        cluster = RayNodes(folder, networks, environ)
        try:
            cluster.start(0, "--head", f"--port={PORT}", "--include-dashboard=true")
            until(lambda: "ray status" in cluster.logs(), START_TIMEOUT_S, cluster.logs)
            cluster.start(1, f"--address={head}")
            until(lambda: cluster.count() == 2, START_TIMEOUT_S, cluster.logs)
            yield cluster
        finally:
            cluster.stop()
