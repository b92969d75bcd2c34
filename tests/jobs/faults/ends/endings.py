"""Ends of jobs under torchrun: what a rank does, what ends the others, and what must be reported about it."""

from __future__ import annotations

import random
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from otel_torchdist.telemetry import semconv
from tests.jobs.faults.ends.kills import RANKS, THRESHOLD_S, LaunchedJob, end_all, kill_one, launched, problems
from tests.jobs.faults.outcome import Outcome
from tests.support.launch.nodes import Nodes
from tests.support.launch.warm_python import WarmPython
from tests.support.waiting import until

ODD_ONE: Final = 2
HANGS: Final = ("late", "gil", "stop")


@dataclass(frozen=True)
class Ending:
    """A way for a job to end.

    Attributes:
        title: Its usual name.
        deed: What rank 2 does, see the worker; '' for nothing.
        by: The signal that then ends all ranks (SIGTERM is sent by torchrun itself); 0 where torchrun needs none.
        verdict: The expected last verdict; '' for none.
        said: How the last report of an agent must begin.
        environ: Additions to the environment, see the worker.
        contains: A pattern of something in that report.
    """

    title: str
    deed: str
    by: int
    verdict: str
    said: str
    environ: Mapping[str, str] = field(default_factory=dict[str, str])
    contains: str = ""


_TERM: Final = {"HANDLES_TERM": "1", "OTEL_PYTHON_TORCHDIST_PREEMPTION_SIGNALS": "SIGTERM"}
_GAVE_UP: Final = r": gloo gave up in ranks 0-1,3 after 5(\.\d)? s"
_HUNG: Final = "the job was ended while it hung, after "
WAYS: Final = (
    Ending("exception under torchrun", "raise", 0, "dead", "rank 2 ended with ValueError"),
    Ending("`os._exit(0)` on one rank", "leave", 0, "absent", "rank 2 has exited with code 0 before all_reduce"),
    Ending("SIGTERM to torchrun", "", signal.SIGTERM, "", ""),
    Ending("late rank, then SIGTERM to torchrun", "late", signal.SIGTERM, "absent", _HUNG),
)
"""One of each way: death, early end, cancellation, hang."""
VARIANTS: Final = (
    Ending("`os._exit` under torchrun", "exit", 0, "dead", "rank 2 exited with code 3"),
    Ending("`os._exit`, and a slow end, under torchrun", "exit", 0, "dead", "rank 2 ", {"SLOW_END": "2"}),
    Ending("end of the script on one rank", "return", 0, "absent", "rank 2 has exited with code 0 before all_reduce"),
    Ending("`sys.exit` on one rank", "quit", 0, "dead", "rank 2 exited with code 3"),
    Ending("exception that all ranks handle", "raise", 0, "dead", "rank 2 exited with code 1", {"HANDLES_ERRORS": "1"}),
    Ending(
        *("end of the script on one rank, exceptions handled on the others", "return", 0, "absent"),
        *("rank 2 has exited with code 0 before all_reduce", {"HANDLES_ERRORS": "1"}),
    ),
    Ending("late rank, and gloo's timeout", "late", 0, "absent", "all_reduce (", {"TIMEOUT_S": "5"}, _GAVE_UP),
    Ending(
        *("late rank, and gloo's timeout before the threshold", "late", 0, "absent", "all_reduce ("),
        {"TIMEOUT_S": "5", "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "60000"},
        _GAVE_UP,
    ),
    Ending(
        *("SIGTERM to one rank, which handles it and exits with 0", "ask", 0, "absent"),
        *("rank 2 has exited with code 0 after SIGTERM before all_reduce", _TERM),
    ),
    Ending("SIGTERM to torchrun, whose ranks exit with 0", "", signal.SIGTERM, "", "", _TERM),
    Ending("GIL held, then Ctrl-C", "gil", signal.SIGINT, "absent", _HUNG),
    Ending("SIGSTOP, then SIGKILL to all", "stop", signal.SIGKILL, "frozen", _HUNG),
)
ENDINGS: Final = (*WAYS, *VARIANTS)


def observe_ending(ending: Ending, python: WarmPython | None) -> Outcome:
    """Let a job end in that way, and compare the reports of agent and `diagnose` with the expected ones."""
    with launched(python, environ={"PAUSE_S": "0.02", **ending.environ}) as job:
        if ending.deed:
            job.order(ODD_ONE, ending.deed)
        if ending.deed in HANGS:
            until(lambda: any(root.attributes[semconv.VERDICT] == ending.verdict for root in job.roots()))
        if ending.by:
            _end(job, ending.by)
        if ending.verdict:
            said = job.said()
        else:
            job.wait_for_end()
            time.sleep(2)
            said = job.said(awaited=False)
        until(lambda: len(list(job.base.glob("**/*.death"))) == RANKS)
        (document,) = job.documents()
    agent = {("", "")} if not said.agent else set(said.agent)
    expected = (ending.verdict, str(ODD_ONE) if ending.verdict else "")
    found = document["verdict"]
    disk = ("", "") if found is None else (found["kind"], ",".join(map(str, found["ranks"])))
    sentence = said.sentences[-1 if ending.deed in HANGS else 0] if said.sentences else ""
    checks = {
        f"the agent says {sorted(agent)}, not {expected}": agent == {expected},
        f"diagnose says {disk}, not {expected}": disk == expected,
        f"it does not begin with {ending.said!r}": sentence.startswith(ending.said),
        f"it does not contain {ending.contains!r}": re.search(ending.contains, sentence) is not None,
        "diagnose does not say that ranks ended together": bool(ending.verdict or "HANDLES_TERM" in ending.environ)
        or document["ended_together"] is not None,
        "diagnose does not say how long the job hung": (ending.deed in HANGS)
        == (found is not None and (found["hung_s"] or 0) >= THRESHOLD_S),
    }
    if not ending.verdict and document["ended_together"] is not None:
        sentence = document["ended_together"]["sentence"]
    return Outcome(*expected, sentence, 0.0, 0.0, tuple(text for text, is_well in checks.items() if not is_well))


def _end(job: LaunchedJob, by: int) -> None:
    """End all ranks as torchrun does, or all at once as a terminal or a scheduler does."""
    if by != signal.SIGTERM:
        end_all(map(job.pid, range(RANKS)), by)
    job.signal(signal.SIGTERM)


def observe_kill(python: WarmPython | None, two: Nodes | None = None, others_end: bool = False) -> Outcome:
    """Kill a random rank at a random moment; see `kill_one`."""
    victim, said = kill_one(random.Random(), python, two, others_end)
    sentence = said.sentences[0] if said.sentences else ""
    return Outcome("dead", str(victim), sentence, 0.0, 0.0, tuple(problems(victim, said)))
