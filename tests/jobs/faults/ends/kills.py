"""Jobs under plain torchrun that come to a sudden end, and what was said about it.

Command line: `python -m tests.jobs.faults.ends.kills`.
With `--count 50` a random one of four ranks is killed at a random moment of a busy loop of collectives, 50 times; with
`--nodes 2` two ranks each run on two nodes with networks of their own. With `--deed terminate` it gets SIGTERM instead,
and with `--deed cancel` torchrun does.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.model.text import plain_rank
from otel_torchdist.node.job.runs.runs import index_of
from otel_torchdist.runs.diagnosis.diagnosis import diagnose_run
from otel_torchdist.runs.diagnosis.result import result_of
from otel_torchdist.telemetry import semconv
from tests.support.commands.running import kill_processes_of, processes_of, stacks_of
from tests.support.launch.nodes import INTERFACE, NAMESPACE_VARIABLE, Nodes, nodes, why_not
from tests.support.launch.quiet import QUIET
from tests.support.launch.torchrun import Torchrun
from tests.support.launch.warm_python import WarmPython
from tests.support.receivers.otlp_receiver import GRPC, OtlpReceiver, ReceivedSpan
from tests.support.repository import REPOSITORY
from tests.support.waiting import until

WORKER = Path(__file__).parents[1] / "workers" / "endings.py"
THRESHOLD_S = 2.0
LONGEST_S = 90.0
STARTUP_S = 120.0
RANKS = 4
REPORTED_S = 10.0


@dataclass(frozen=True)
class Said:
    """What was reported about a job's end.

    Attributes:
        agent: Kind and ranks of each verdict of its agents, in order.
        sentences: Sentences of the agents, in order; the end of an incident has a sentence too.
        documents: Output of `diagnose --json`, by node.
    """

    agent: tuple[tuple[str, str], ...]
    sentences: tuple[str, ...]
    documents: tuple[dict[str, Any], ...]

    @property
    def disk(self) -> list[tuple[str, list[int]]]:
        """Kind and ranks of each verdict of `diagnose`."""
        found = [document["verdict"] for document in self.documents]
        return [(one["kind"], one["ranks"]) if one is not None else ("", []) for one in found]


class LaunchedJob:
    """Four ranks under torchrun, on one node or half of them on each of two.

    Attributes:
        base: Base directory of their tapes; on two nodes each has its own in it.
    """

    def __init__(
        self,
        folder: Path,
        base: Path,
        receiver: OtlpReceiver,
        two: Nodes | None = None,
        python: WarmPython | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Start the job.

        Args:
            folder: For pids and orders.
            base: See above.
            receiver: Where spans go.
            two: Where the ranks run.
            python: Starts torchrun, which then forks its ranks; the usual torchrun when None, on one node only.
            environ: Additions to the environment.
        """
        self.base, self._folder, self._receiver = base, folder, receiver
        base.mkdir(mode=0o700, exist_ok=True)
        common = {
            **QUIET,
            "GLOO_SOCKET_IFNAME": "lo" if two is None else INTERFACE,
            "OMP_NUM_THREADS": "1",
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": receiver.protocol,
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_PYTHON_TORCHDIST_ENABLED": "true",
            "OTEL_PYTHON_TORCHDIST_READER": "agent",
            "OTEL_PYTHON_TORCHDIST_AGENT_LINGER": "60000",
            # Ranks that import torch anew on a busy machine create their group seconds apart, which is a stall.
            "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": str(int(THRESHOLD_S * 1000) if python is not None else 20_000),
            **(environ or {}),
        }
        run = ("--standalone", f"--nproc-per-node={RANKS}")
        places = [(run, {"OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(base)})]
        if two is not None:
            places = [self._on_node(two, node) for node in range(len(two.names))]
        self._nodes = len(places)
        script = [str(WORKER), str(folder)]
        self._warm: list[Torchrun] = []
        self._process: subprocess.Popen[bytes] | None = None
        if python is None:
            command = [sys.executable, "-m", "torch.distributed.run", *run, *script]
            own = {**os.environ, **common, **places[0][1]}
            self._process = subprocess.Popen(
                command, env=own, cwd=REPOSITORY, stderr=subprocess.DEVNULL, start_new_session=True
            )
            return
        for node, (options, more) in enumerate(places):
            self._warm.append(Torchrun(python, folder / f"{node}", [*options, *script], {**common, **more}))

    def _on_node(self, two: Nodes, node: int) -> tuple[tuple[str, ...], dict[str, str]]:
        options = (
            *("--nnodes=2", f"--nproc-per-node={RANKS // 2}", "--rdzv-backend=c10d"),
            *(f"--rdzv-endpoint={two.addresses[0]}:29400", f"--rdzv-conf=is_host={int(node == 0)}"),
            f"--local-addr={two.addresses[node]}",
        )
        tapes = self.base / f"node-{node}"
        return options, {
            NAMESPACE_VARIABLE: two.path(node),
            # Else ranks of one node may connect to the store of the other one's torchrun while it forks; see `Gate`.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(tapes),
        }

    @property
    def directories(self) -> list[Path]:
        """The job directories."""
        return sorted(path.parent for path in self.base.glob("**/watch.lock"))

    def wait_until_watched(self) -> None:
        """Wait until all ranks are in their loop, and their agents read and know each other."""
        until(lambda: len(list(self._folder.glob("*.pid"))) == RANKS, STARTUP_S, self._state)
        until(lambda: len(list(self.base.glob("**/agent.checkpoint"))) == self._nodes, STARTUP_S, self._state)
        if self._nodes > 1:
            until(lambda: len(list(self.base.glob("**/peers-*.json"))) == self._nodes, STARTUP_S, self._state)
            time.sleep(5)  # long enough for an exchange, which agents without a stall make every 2 s

    def _state(self) -> str:
        printed = [torchrun.log for torchrun in self._warm]
        return "\n".join(["the job does not start", *printed, stacks_of(processes_of(self.base))])

    def pid(self, rank: int) -> int:
        """The process of a rank."""
        return int((self._folder / f"{rank}.pid").read_text())

    def order(self, rank: int, deed: str) -> None:
        """Make a rank do something; see the worker."""
        (self._folder / f".{rank}.deed").write_text(deed)
        (self._folder / f".{rank}.deed").rename(self._folder / f"{rank}.deed")

    def signal(self, number: int) -> None:
        """Send a signal to every torchrun."""
        for pid in self._launcher_pids():
            os.kill(pid, number)

    def _launcher_pids(self) -> list[int]:
        if self._process is not None:
            return [self._process.pid]
        return [torchrun.pid for torchrun in self._warm]

    def wait_for_end(self) -> list[int | None]:
        """The exit codes of every torchrun."""
        if self._process is not None:
            return [self._process.wait(LONGEST_S)]
        return [torchrun.wait(2 * LONGEST_S) for torchrun in self._warm]

    def roots(self) -> list[ReceivedSpan]:
        """What the agents have reported about incidents."""
        return [span for span in self._receiver.spans() if span.name.startswith("stall: ")]

    def said(self, awaited: bool = True) -> Said:
        """The reports of agents and `diagnose` after the job's end; `awaited` if the agents must report something."""
        with contextlib.suppress(AssertionError):
            until(lambda: any(semconv.STALL_RESOLVED in root.attributes for root in self.roots()), REPORTED_S * awaited)
            # A node that has not seen the death learns of the verdict later.
            until(lambda: all(document["verdict"] for document in self.documents()), REPORTED_S * awaited)
        time.sleep(1)  # to catch reports that should not come
        roots = self.roots()
        found = [root for root in roots if semconv.STALL_RESOLVED not in root.attributes]
        verdicts = [
            (root.attributes[semconv.VERDICT], root.attributes.get(semconv.VERDICT_RANKS, "")) for root in found
        ]
        return Said(tuple(verdicts), tuple(root.error or "" for root in roots), tuple(self.documents()))

    def documents(self) -> Iterator[dict[str, Any]]:
        """The output of `diagnose --json` on each node."""
        for directory in self.directories:
            index = index_of([directory])
            diagnosis = diagnose_run(index.runs[0], StallRules(round(THRESHOLD_S * 1e9)))
            yield msgspec.json.decode(msgspec.json.encode(result_of(diagnosis), enc_hook=plain_rank))
            index.close()

    def close(self) -> None:
        """Kill all remaining processes."""
        kill_processes_of(self.base)
        self.wait_for_end()


@contextlib.contextmanager
def launched(python: WarmPython | None = None, two: Nodes | None = None, **others: Any) -> Iterator[LaunchedJob]:
    """A job whose ranks are in their loop; nothing of it is left after the block."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        base = Path(tempfile.mkdtemp(prefix="otel-torchdist-test-", dir="/dev/shm"))
        stack.callback(shutil.rmtree, base)
        receiver = stack.enter_context(OtlpReceiver(GRPC, host="127.0.0.1" if two is None else two.outside))
        job = LaunchedJob(folder, base / "tapes", receiver, two, python, **others)
        stack.callback(job.close)
        job.wait_until_watched()
        yield job


def kill_one(
    chance: random.Random, python: WarmPython | None, two: Nodes | None = None, others_end: bool = False
) -> tuple[int, Said]:
    """Kill a random rank of a job at a random moment.

    Args:
        chance: Which rank, and when.
        python: As for `LaunchedJob`.
        two: As for `LaunchedJob`.
        others_end: End the others 0.1 s after its end as torchrun does, which takes longer where it has no processor.

    Returns:
        The rank, and what was reported.
    """
    victim = chance.randrange(RANKS)
    with launched(python, two) as job:
        pids = [job.pid(rank) for rank in range(RANKS)]
        time.sleep(chance.random() * 0.5)
        killed = pids.pop(victim)
        os.kill(killed, signal.SIGKILL)
        if others_end:
            _wait_for_end_of(killed)  # without a processor it may take longer than 0.1 s, and a launcher sees only ends
            time.sleep(0.1)
            end_all(pids, signal.SIGTERM)
        job.wait_for_end()
        return victim, job.said()


def ask(chance: random.Random, python: WarmPython | None, is_cancelled: bool) -> tuple[int, Said]:
    """Send SIGTERM to a random rank of a job at a random moment, or to its torchrun.

    Args:
        chance: Which rank, and when.
        python: As for `LaunchedJob`.
        is_cancelled: Whether torchrun gets it.

    Returns:
        The rank, and what was reported.
    """
    victim = chance.randrange(RANKS)
    with launched(python) as job:
        time.sleep(chance.random() * 0.5)
        if is_cancelled:
            job.signal(signal.SIGTERM)
        else:
            os.kill(job.pid(victim), signal.SIGTERM)
        job.wait_for_end()
        time.sleep(2)
        return victim, job.said(awaited=False)


def blames(victim: int | None, said: Said) -> list[str]:
    """What is wrong with the reports about ranks that got SIGTERM: only `victim` may be named."""
    allowed = [("dead", str(victim))] if victim is not None else []
    found = [f"the agent says {one}" for one in said.agent if one not in allowed]
    for document in said.documents:
        verdict, together = document["verdict"], document["ended_together"]
        if verdict is not None and verdict["ranks"] != [victim]:
            found.append(f"diagnose says {verdict['sentence']}")
        if verdict is None and together is None:
            found.append("diagnose does not say that ranks ended together")
    return found


def _wait_for_end_of(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        select.select([descriptor], [], [], LONGEST_S)
        os.close(descriptor)


def end_all(pids: Iterable[int], by: int) -> None:
    """Send a signal to the processes that are still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, by)


def problems(victim: int, said: Said) -> list[str]:
    """What is wrong with the reports about a rank that was killed."""
    expected = ("dead", str(victim))
    found: list[str] = []
    if set(said.agent) != {expected}:
        found.append(f"the agent says {said.agent or 'nothing'}, not {expected}")
    if not any("was killed by SIGKILL" in text for text in said.sentences):
        found.append(f"nobody says that SIGKILL did it: {said.sentences}")
    if any(one != ("dead", [victim]) for one in said.disk):  # also on the node that has not seen the death
        found.append(f"diagnose says {said.disk}")
    return found


def main() -> int:
    """Kill ranks repeatedly; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--nodes", type=int, choices=(1, 2), default=1)
    parser.add_argument("--deed", choices=("kill", "terminate", "cancel"), default="kill")
    parser.add_argument("--seed", type=int, default=15)
    parser.add_argument("--warm", action="store_true", help="let torchrun fork its ranks, which takes less time")
    options = parser.parse_args()
    if options.nodes == 2 and why_not():
        print(f"left out: {why_not()}")
        return 0
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        del os.environ[name]
    python = WarmPython() if options.warm or options.nodes == 2 else None
    chance, results = random.Random(options.seed), Counter[bool]()
    with nodes(2) if options.nodes == 2 else contextlib.nullcontext() as two:
        for number in range(options.count):
            if options.deed == "kill":
                victim, said = kill_one(chance, python, two)
                wrong = problems(victim, said)
            else:
                victim, said = ask(chance, python, options.deed == "cancel")
                wrong = blames(victim if options.deed == "terminate" else None, said)
            results[not wrong] += 1
            text = "; ".join(wrong) or (said.sentences[0] if said.sentences else "ended together")
            print(f"{number + 1}: rank {victim}: {text}", flush=True)
    if python is not None:
        python.close()
    where = f"of {options.count} ({options.deed}) on {options.nodes} node(s)"
    print(f"{results[True]} right and {results[False]} wrong {where}")
    return int(results[False] > 0)


if __name__ == "__main__":
    sys.exit(main())
