"""Drains the node that a verdict blames, with the reason, and lets the job start again without it.

    OTEL_PYTHON_TORCHDIST_ON_MACHINE="command:python3 /opt/otel-torchdist/actions/slurm.py --requeue --act"

Only operators and administrators of Slurm may drain nodes; any user may exclude one from their own job. Slurm changes
the excluded nodes of pending jobs only, so `--requeue` ends a running job: it is held, changed, and released. A process
in a control group of that job ends before it is pending: there, `--requeue` needs a drained node and holds nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from advice import (
    ActionError,
    Advice,
    UnknownOutcomeError,
    add_limits,
    check_at_once,
    in_one_line,
    parser_of,
    run_adapter,
    take_slot,
)

MAX_REASON: Final = 200
TIMEOUT_S: Final = 10.0
"""Seconds for one call of `scontrol`."""
COMMAND_S: Final = 55.0
"""Seconds for all calls. The agent and webhook_receiver.py kill a command after 60 s, and a job could stay held."""
RELEASE_S: Final = TIMEOUT_S
"""Seconds kept for the call that releases the job."""
HOLDING_S: Final = 35.0
"""Seconds that must be left before a job is held: to requeue it, to change it once it is pending, and to release it."""
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
    if requeues and not refusals:
        try:
            done.append(_requeue(slurm, job, nodes, arguments, is_drained=drains))
        except ActionError as error:
            refusals.append(str(error))
    if refusals:
        raise ActionError("; ".join([*done, *refusals]))
    return f"{'; '.join(done) or 'nothing to do'}: {advice.reason}"


def _drain(slurm: Slurm, node: str, advice: Advice, arguments: argparse.Namespace) -> str:
    if slurm.is_drained(node):
        return f"{node} is drained already"
    with take_slot(arguments.state, node, arguments.a_day):
        slurm.drain(node, in_one_line(f"otel_torchdist run {advice.run}: {advice.reason}", MAX_REASON))
    return f"drained {node}"


def _requeue(slurm: Slurm, job: str, nodes: list[str], arguments: argparse.Namespace, is_drained: bool) -> str:
    """Requeue a job. If its nodes were not drained before, each counts as taken."""
    record = slurm.job(job)
    record.check_runs_on(nodes)
    if not is_in_job(job, Path("/proc/self/cgroup").read_text()):
        with contextlib.ExitStack() as slots:
            for node in () if is_drained else nodes:
                slots.enter_context(take_slot(arguments.state, node, arguments.a_day))
            return slurm.requeue_without(record, nodes)
    if not is_drained:
        raise ActionError(
            f"job {job} was not requeued: this process is in its control group, and would end before Slurm "
            "excludes a node and releases the job; run it outside, as behind webhook_receiver.py"
        )
    slurm.requeue(record)
    return f"requeued job {record.name}"


def is_in_job(job: str, cgroups: str) -> bool:
    """Return whether `/proc/self/cgroup` says that Slurm ends this process with the job, whatever it does."""
    return any(f"job_{job}" in line.split("/") for line in cgroups.splitlines())


@dataclass(frozen=True)
class Job:
    """A job, as Slurm shows it.

    Attributes:
        name: Its id; of a task of a job array `36_2`, since the plain id of one task stands for the whole array.
        nodes: The nodes it has; none while it is pending.
        is_pending: Whether it waits for its start.
        excluded: The nodes it excludes, as Slurm writes them; "" for none.
    """

    name: str
    nodes: tuple[str, ...]
    is_pending: bool
    excluded: str

    def check_runs_on(self, nodes: list[str]) -> None:
        """Refuse a job that has none of these nodes: the verdict is not about it.

        Raises:
            ActionError: It runs elsewhere.
        """
        if not self.is_pending and not {*self.nodes} & {*nodes}:
            raise ActionError(f"refused: job {self.name} does not run on {','.join(nodes)}")


class Slurm:
    """Slurm, through `scontrol`."""

    def __init__(self, program: str) -> None:
        """Use this `scontrol`, for `COMMAND_S` from now."""
        self._program = program
        self._deadline = time.monotonic() + COMMAND_S

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

    def job(self, job: str) -> Job:
        """Return a job by its id.

        Raises:
            ActionError: Slurm does not know it.
        """
        records = [_fields(line) for line in self._run("--oneliner", "show", "job", job).splitlines()]
        by_name = {name: fields for fields in records for name in (fields.get("JobId", ""), _task_of(fields))}
        if job not in by_name:
            raise ActionError(f"refused: Slurm has no job {job}")
        fields = by_name[job]
        listed = _value(fields, "NodeList")
        nodes = self._run("show", "hostnames", listed).split() if listed else []
        is_pending = fields.get("JobState") == "PENDING"
        return Job(_task_of(fields) or job, tuple(nodes), is_pending, _value(fields, "ExcNodeList"))

    def requeue(self, job: Job) -> None:
        """End a job, and have Slurm start it again on any nodes."""
        self._run("requeue", job.name)

    def requeue_without(self, job: Job, nodes: list[str]) -> str:
        """End a job, and have Slurm start it again without these nodes; return what was done."""
        excluded = ",".join(dict.fromkeys([*([job.excluded] if job.excluded else []), *nodes]))
        if job.is_pending:
            self._exclude(job, excluded)
            return f"changed job {job.name} without {','.join(nodes)}"
        if time.monotonic() > self._deadline - HOLDING_S:
            raise ActionError(f"job {job.name} was not requeued: Slurm answers too slowly")
        try:
            self._run("requeuehold", job.name)
        except UnknownOutcomeError:
            self._run("release", job.name)
            raise
        try:
            self._exclude(job, excluded)
        finally:
            self._run("release", job.name)
        return f"requeued job {job.name} without {','.join(nodes)}"

    def _exclude(self, job: Job, nodes: str) -> None:
        """Exclude nodes from a job, which becomes pending only after its processes have been told to end."""
        while True:
            try:
                self._run("update", f"JobId={job.name}", f"ExcNodeList={nodes}", kept_s=RELEASE_S)
                return
            except ActionError:
                if time.monotonic() >= self._deadline - RELEASE_S - 1.0:
                    raise
            time.sleep(0.2)

    def _run(self, *arguments: str, kept_s: float = 0.0) -> str:
        """Run `scontrol`, within what is left of the time after `kept_s` seconds are kept for other calls."""
        left_s = max(self._deadline - kept_s - time.monotonic(), 0.1)
        try:
            done = subprocess.run(
                [self._program, *arguments],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=min(TIMEOUT_S, left_s),
            )
        except subprocess.TimeoutExpired as error:
            raise UnknownOutcomeError(f"{self._program}: {error}") from error
        except OSError as error:
            raise ActionError(f"{self._program}: {error}") from error
        if done.returncode:
            said = in_one_line(done.stderr or done.stdout, 200)
            raise ActionError(f"`{self._program} {' '.join(arguments)}` was refused: {said}")
        return done.stdout


def _task_of(fields: dict[str, str]) -> str:
    """Return the name of a task of a job array, such as `36_2`; "" for other jobs."""
    array, task = fields.get("ArrayJobId", ""), fields.get("ArrayTaskId", "")
    return f"{array}_{task}" if array and task.isdecimal() else ""


def _value(fields: dict[str, str], name: str) -> str:
    return fields.get(name, "").replace("(null)", "")


def _fields(line: str) -> dict[str, str]:
    """Return the fields of a line of `scontrol --oneliner show`. The first counts: a reason may contain `State=`."""
    return dict(word.split("=", 1) for word in reversed(line.split()) if "=" in word)


if __name__ == "__main__":
    raise SystemExit(main())
