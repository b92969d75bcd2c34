"""A Slurm cluster on this machine: Debian's munged, slurmctld and two slurmds, each in namespaces of its own.

A node has its own network, host name, processes, `/dev/shm` and cgroups, so that killing its first process is a power
failure, and what the other node can read is what it could read elsewhere. Files and users are shared, as on a cluster.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from deploy.native.ports import free_port
from tests.support.launch.nodes import Nodes, nodes, why_not
from tests.support.repository import REPOSITORY
from tests.support.waiting import until

PROGRAMS: Final = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "sinfo")
KILL_WAIT_S: Final = 10
"""Seconds between Slurm's SIGTERM and SIGKILL; 30 where a cluster sets nothing."""
USERS: Final = ("games", "nobody")
"""Users of every Debian who are not root."""
_MISSING: Final = "needs Slurm: `make slurm` installs Debian's slurmctld, slurmd and munge"
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_FREEZER: Final = Path("/sys/fs/cgroup/freezer")

_CONFIGURATION: Final = """\
ClusterName=tests
SlurmctldHost={host}({address})
SlurmctldPort={port}
SlurmdPort=6818
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/{tracking}
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1
ReturnToService=2
KillWait={kill_wait_s}
SlurmdTimeout={timeout_s}
SlurmctldTimeout=5
TCPTimeout=5
MinJobAge=3600
OverTimeLimit=0
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
{more}
"""
_CGROUPS: Final = "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\nCgroupAutomount=no\n"
# What a node mounts for itself: files that name it, and memory that others do not see. bash reaps what is left to it.
_NODE: Final = """\
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount --bind {folder}/hosts /etc/hosts
{opened}
{cgroups}
hostname {name}
trap : TERM
slurmd -D -N {name} &
while :; do wait; sleep 0.1; done
"""


def slurm_or_skip() -> None:
    """Skip the test where Slurm cannot run here. In CI it fails if Slurm is not installed."""
    if not all(shutil.which(program, path=_PATH) for program in PROGRAMS):
        if os.environ.get("CI"):
            pytest.fail(_MISSING)
        pytest.skip(_MISSING)
    if reason := why_not():
        pytest.skip(reason)


@dataclass
class SlurmCluster:
    """A running cluster.

    Attributes:
        folder: What all nodes share; each of its users may write to `work`.
        nodes: The networks of the nodes.
        names: The nodes' names, `n1` and so on.
        tracks: How Slurm finds the processes of a step: `cgroup`, or `linuxproc` where cgroups cannot be written.
    """

    folder: Path
    nodes: Nodes
    names: tuple[str, ...]
    tracks: str
    _daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict[str, "subprocess.Popen[bytes]"])

    @property
    def work(self) -> Path:
        """The directory from which jobs are submitted."""
        return self.folder / "work"

    def environ(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of a user's shell on the login node, without what the tests set for themselves."""
        kept = {name: os.environ[name] for name in ("LANG", "LC_ALL") if name in os.environ}
        return {
            **kept,
            "PATH": _PATH,
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "HOME": str(self.work),
            **(more or {}),
        }

    def run(
        self,
        *command: str,
        user: str = USERS[0],
        environ: Mapping[str, str] | None = None,
        check: bool = True,
        text: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the login node, as a user, with a text as its standard input."""
        done = subprocess.run(
            [*_as_user(user), *command],
            cwd=self.work,
            env=self.environ(environ),
            input=text,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert not check or done.returncode == 0, f"{shlex.join(command)}: {done.stdout}{done.stderr}"
        return done

    def run_on(self, name: str, *command: str, user: str = "root") -> subprocess.CompletedProcess[str]:
        """Run a command on a node outside of all jobs, as `ssh` would."""
        entered = ["nsenter", "--all", f"--target={self._first_process(name)}", f"--wd={self.work}"]
        return subprocess.run(
            [*entered, *_as_user(user), *command], env=self.environ(), capture_output=True, text=True, timeout=120
        )

    def processes(self, name: str, word: str) -> list[str]:
        """The command lines with a word of processes on a node."""
        shown = self.run_on(name, "ps", "-eo", "pid,stat,args", "--no-headers").stdout
        return [line for line in shown.splitlines() if word in line]

    def shown(self, *what: str) -> str:
        """What `scontrol show` prints, one line for each record; '' if there is none."""
        return self.run("scontrol", "--oneliner", "show", *what, check=False).stdout

    def fields(self, *what: str) -> dict[str, str]:
        """The fields of the last record by name; the first of a name counts, because a reason may contain others."""
        words = "".join(self.shown(*what).splitlines()[-1:]).split()
        return dict(word.split("=", 1) for word in reversed(words) if "=" in word)

    def node_state(self, name: str) -> str:
        """The state of a node, such as `idle` or `down*`."""
        return self.run("sinfo", "--noheader", f"--nodes={name}", "--format=%t").stdout.strip()

    def fail_power(self, name: str) -> None:
        """End all processes of a node at once, slurmd included."""
        os.kill(self._first_process(name), signal.SIGKILL)
        self._daemons.pop(name).wait(30)

    def start_node(self, name: str) -> None:
        """Start a node, and wait until Slurm gives it work."""
        node = self.names.index(name)
        network = self.nodes.path(node)
        cgroups = ""
        if self.tracks == "cgroup":
            own = _FREEZER / f"otdslurm-{self.nodes.names[node]}"
            own.mkdir(exist_ok=True)
            cgroups = f"mount --bind {own} {_FREEZER}"
        script = _NODE.format(folder=self.folder, name=name, cgroups=cgroups, opened=_opened(self.folder))
        entered = ["nsenter", f"--net={network}", "unshare", "--mount", "--uts", "--ipc", "--pid", "--fork"]
        with (self.folder / f"node-{name}.log").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                [*entered, "--kill-child", "bash", "-c", script], env=self.environ(), stdout=log, stderr=log
            )
        until(lambda: self.node_state(name) in ("idle", "mix", "alloc"), 60.0, self.logs)

    def start(self) -> None:
        """Start the daemons that no node runs."""
        folder = self.folder
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o400)
        socket = f"--socket={folder}/munge.socket"
        self._daemon("munged", "--foreground", "--force", socket, f"--key-file={folder}/munge.key", *(
            f"--{kind}-file={folder}/munge.{kind}" for kind in ("pid", "log", "seed")
        ))  # fmt: skip
        until((folder / "munge.socket").exists, 20.0, self.logs)
        self._daemon("slurmctld", "-D")
        until(lambda: self.run("sinfo", check=False).returncode == 0, 30.0, self.logs)

    def logs(self) -> str:
        """The ends of the daemons' logs."""
        return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-1500:]}" for log in self.folder.glob("*.log"))

    def stop(self) -> None:
        """End all daemons, and what still runs on the nodes."""
        for name in self.names:
            if name in self._daemons:
                with contextlib.suppress(ProcessLookupError, IndexError):
                    self.fail_power(name)
        for daemon in self._daemons.values():
            daemon.kill()
            daemon.wait(30)
        for network in self.nodes.names:
            for left in sorted(_FREEZER.glob(f"otdslurm-{network}/**/"), reverse=True):
                with contextlib.suppress(OSError):
                    left.rmdir()

    def _daemon(self, program: str, *arguments: str) -> None:
        path = shutil.which(program, path=_PATH)
        assert path is not None
        with (self.folder / f"{program}.out.log").open("ab") as log:
            self._daemons[program] = subprocess.Popen(
                [path, *arguments], env=self.environ(), stdout=log, stderr=log, start_new_session=True
            )

    def _first_process(self, name: str) -> int:
        """The process of the node whose end ends all others: the child of `unshare`."""
        unshare = self._daemons[name].pid
        return int(until(lambda: Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split())[0])


@contextlib.contextmanager
def slurm_cluster(
    more: Sequence[str] = (), files: Mapping[str, str] | None = None, timeout_s: int = 10, tracks: str = ""
) -> Iterator[SlurmCluster]:
    """Start a cluster of two nodes, and remove it afterwards.

    Args:
        more: Lines of `slurm.conf`; `{folder}` in them is the cluster's directory.
        files: Scripts to write into that directory, such as an epilog, by name.
        timeout_s: Seconds after which Slurm takes a silent node for down.
        tracks: How Slurm finds the processes of a step; '' for control groups if they can be written.
    """
    slurm_or_skip()
    with tempfile.TemporaryDirectory(prefix="otd-slurm-") as name, nodes(2) as networks:
        folder = Path(name)
        folder.chmod(0o755)
        for made, mode in (("work", 0o1777), ("state", 0o755)):
            (folder / made).mkdir()
            (folder / made).chmod(mode)
        for script, text in (files or {}).items():
            (folder / script).write_text(text)
            (folder / script).chmod(0o755)
        names = tuple(f"n{index + 1}" for index in range(len(networks.names)))
        pairs = list(zip(names, networks.addresses, strict=True))
        hosts = "".join(f"{address} {node}\n" for node, address in (("localhost", "127.0.0.1"), *pairs))
        (folder / "hosts").write_text(hosts)
        cluster = SlurmCluster(folder, networks, names, tracks or ("cgroup" if _has_freezer() else "linuxproc"))
        (folder / "slurm.conf").write_text(
            _CONFIGURATION.format(
                host=os.uname().nodename,
                address=networks.outside,
                port=free_port(),
                folder=folder,
                tracking=cluster.tracks,
                kill_wait_s=KILL_WAIT_S,
                timeout_s=timeout_s,
                more="\n".join(more).format(folder=folder),
                nodes="".join(f"NodeName={n} NodeHostname={n} NodeAddr={a} CPUs=8 State=UNKNOWN\n" for n, a in pairs),
            )
        )
        (folder / "cgroup.conf").write_text(_CGROUPS)
        try:
            cluster.start()
            for node in names:
                cluster.start_node(node)
            yield cluster
        finally:
            cluster.stop()


def _as_user(name: str) -> list[str]:
    """The start of a command that runs as another user.

    `setpriv` changes the user, not `subprocess`, which would fork: a child of a process that serves gRPC may crash.
    """
    ids = pwd.getpwnam(name)
    return ["setpriv", f"--reuid={ids.pw_uid}", f"--regid={ids.pw_gid}", "--clear-groups"]


def _opened(folder: Path) -> str:
    """The commands that let all users of a node reach this interpreter and checkout, behind a closed home of root."""
    lines: list[str] = []
    for index, path in enumerate(dict.fromkeys((Path(sys.base_prefix).resolve(), REPOSITORY, Path(sys.prefix)))):
        closed = next((up for up in reversed(path.parents) if not up.stat().st_mode & stat.S_IXOTH), None)
        if closed is not None:
            kept = folder / f"kept-{index}"
            kept.mkdir(exist_ok=True)
            lines.insert(0, f"mount --bind {path} {kept}")
            if f"mount -t tmpfs -o mode=755 tmpfs {closed}" not in lines:
                lines.append(f"mount -t tmpfs -o mode=755 tmpfs {closed}")
            lines.append(f"mkdir -p {path} && mount --bind {kept} {path}")
    return "\n".join(lines)


def _has_freezer() -> bool:
    """Whether processes can be tracked as on a real cluster, by control groups (v1)."""
    tried = _FREEZER / f"otdtry-{os.getpid()}"
    try:
        tried.mkdir()
        tried.rmdir()
    except OSError:
        return False
    return True
