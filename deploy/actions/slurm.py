"""Drains the node that a verdict blames, with the reason, and lets the job start again without it.

    OTEL_PYTHON_TORCHDIST_ON_MACHINE="command:python3 /opt/otel-torchdist/actions/slurm.py --requeue --act"

Only operators and administrators of Slurm may drain nodes; any user may exclude one from their own job. Slurm changes
the excluded nodes of pending jobs only, so `--requeue` ends a running job: it is held, changed, and released. A process
in a control group of that job ends before it is pending: there, `--requeue` needs a drained node and holds nothing.
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Final

from advice import ActionError, Advice, add_limits, check_at_once, in_one_line, parser_of, run_adapter, take_slot

MAX_REASON: Final = 200
TIMEOUT_S: Final = 15.0
HELD_S: Final = 20.0
"""Seconds for a job to become pending after it has been requeued."""
_JOB_ID: Final = re.compile(r"\d+(_\d+)?")


def main() -> int:
    """Carry the advice out, or say what would be done."""
    parser = parser_of(__doc__ or "")
    add_limits(parser)
    parser.add_argument("--requeue", action="store_true", help="end the job, and start it again without the node")
    parser.add_argument("--no-drain", action="store_true", help="only exclude: for users who may not drain nodes")
    parser.add_argument("--scontrol", default="scontrol", metavar="PROGRAM")
    arguments = parser.parse_args()
    return run_adapter(lambda advice: act(advice, arguments))


def act(advice: Advice, arguments: argparse.Namespace) -> str:
    """Drain the nodes and requeue the job, as advised; return what was done.

    Raises:
        ActionError: The limits or Slurm refuse.
    """
    if advice.action not in ("drain", "exclude"):
        return f"nothing to do: {advice.reason}"
    check_at_once(advice, arguments.at_once)
    slurm = Slurm(arguments.scontrol)
    nodes = [slurm.node_of(host) for host in advice.hosts]
    job = advice.job.get("slurm_job_id", "")
    drains = advice.action == "drain" and not arguments.no_drain
    requeues = arguments.requeue and _JOB_ID.fullmatch(job) is not None
    if not arguments.act:
        steps = [f"drain {','.join(nodes)}"] if drains else []
        steps += [f"requeue job {job} without {','.join(nodes)}"] if requeues else []
        return f"would {' and '.join(steps) or 'do nothing'} (--act does it): {advice.reason}"
    # The verdict's job is often this process's own: its end must not come between holding and releasing it.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    done: list[str] = []
    refusals: list[str] = []
    for node in nodes if drains else ():
        try:
            done.append(_drain(slurm, node, advice, arguments))
        except ActionError as error:
            refusals.append(str(error))
    if requeues:
        try:
            done.append(_requeue(slurm, job, nodes, is_drained=drains and not refusals))
        except ActionError as error:
            refusals.append(str(error))
    if refusals:
        raise ActionError("; ".join([*done, *refusals]))
    return f"{'; '.join(done) or 'nothing to do'}: {advice.reason}"


def _drain(slurm: Slurm, node: str, advice: Advice, arguments: argparse.Namespace) -> str:
    if slurm.is_drained(node):
        return f"{node} is drained already"
    slot = take_slot(arguments.state, node, arguments.a_day)
    try:
        slurm.drain(node, in_one_line(f"otel_torchdist run {advice.run}: {advice.reason}", MAX_REASON))
    except ActionError:
        slot.give_back()
        raise
    return f"drained {node}"


def _requeue(slurm: Slurm, job: str, nodes: list[str], is_drained: bool) -> str:
    if not is_in_job(job, Path("/proc/self/cgroup").read_text()):
        return slurm.requeue_without(job, nodes)
    if not is_drained:
        raise ActionError(
            f"job {job} was not requeued: this process is in its control group, and would end before Slurm "
            "excludes a node and releases the job; run it outside, as behind webhook_receiver.py"
        )
    slurm.requeue(job)
    return f"requeued job {job}"


def is_in_job(job: str, cgroups: str) -> bool:
    """Return whether `/proc/self/cgroup` says that Slurm ends this process with the job, whatever it does."""
    return any(f"job_{job}" in line.split("/") for line in cgroups.splitlines())


class Slurm:
    """Slurm, through `scontrol`."""

    def __init__(self, program: str) -> None:
        """Use this `scontrol`."""
        self._program = program

    def node_of(self, host: str) -> str:
        """Return the name of the node with a host name.

        Raises:
            ActionError: Slurm has no such node, or several.
        """
        short = host.partition(".")[0]
        names: list[str] = []
        for line in self._run("--oneliner", "show", "node").splitlines():
            fields = _fields(line)
            known = {fields.get("NodeName", ""), fields.get("NodeHostName", ""), fields.get("NodeAddr", "")}
            if host in known or short in known:
                names.append(fields["NodeName"])
        if len(names) != 1:
            raise ActionError(f"refused: Slurm has {len(names)} nodes with the host name {host}")
        return names[0]

    def is_drained(self, node: str) -> bool:
        """Return whether a node gets no more jobs already."""
        return "DRAIN" in _fields(self._run("--oneliner", "show", "node", node)).get("State", "")

    def drain(self, node: str, reason: str) -> None:
        """Drain a node: its jobs go on, and it gets no others."""
        self._run("update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")

    def requeue(self, job: str) -> None:
        """End a job, and have Slurm start it again on any nodes."""
        self._run("requeue", job)

    def requeue_without(self, job: str, nodes: list[str]) -> str:
        """End a job, and have Slurm start it again without these nodes; return what was done."""
        before = _fields(self._run("--oneliner", "show", "job", job))
        excluded = [before["ExcNodeList"]] if before.get("ExcNodeList", "(null)") != "(null)" else []
        is_pending = before.get("JobState") == "PENDING"
        if not is_pending:
            self._run("requeuehold", job)
        try:
            self._exclude(job, ",".join(dict.fromkeys([*excluded, *nodes])))
        finally:
            if not is_pending:
                self._run("release", job)
        return f"{'changed' if is_pending else 'requeued'} job {job} without {','.join(nodes)}"

    def _exclude(self, job: str, nodes: str) -> None:
        """Exclude nodes from a job, which becomes pending only after its processes have been told to end."""
        deadline = time.monotonic() + HELD_S
        while True:
            try:
                self._run("update", f"JobId={job}", f"ExcNodeList={nodes}")
                return
            except ActionError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(0.2)

    def _run(self, *arguments: str) -> str:
        try:
            done = subprocess.run(
                [self._program, *arguments], capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ActionError(f"{self._program}: {error}") from error
        if done.returncode:
            said = in_one_line(done.stderr or done.stdout, 200)
            raise ActionError(f"`{self._program} {' '.join(arguments)}` was refused: {said}")
        return done.stdout


def _fields(line: str) -> dict[str, str]:
    """Return the fields of a line of `scontrol --oneliner show`. The first counts: a reason may contain `State=`."""
    return dict(word.split("=", 1) for word in reversed(line.split()) if "=" in word)


if __name__ == "__main__":
    raise SystemExit(main())
