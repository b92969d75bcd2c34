"""A diagnosis as one JSON document, for programs.

Keys are only ever added within a schema. Times are ISO 8601 in UTC, ages are seconds before `moment.time`; unknown
values are null.

- `schema`: 1.
- `run`: `id` (32 hex digits, or null), `directory`, `host`, `begun`, `world_size`, `capture`.
- `capture`: what records the ranks, an entry for each difference between them: `kernel` (`native`, `python`, or null),
  `torch` (its version, or null), `ranks`.
- `coverage`: `reporting` and `unknown`, lists of ranks with and without a tape here.
- `moment`: `time`, and `is_now`, which is false if no rank is alive: then `time` is that of the newest sign of life.
  `bound` is null, or `up to` or `at least` where all ages are known no better, as in dumps of a flight recorder.
- `problem`: whether there is a verdict or a finding, or a rank or one of its helpers has failed or died; the same as
  exit code 1.
- `threshold_s`: minimum age at which an open operation counts as stalled.
- `verdict`: null, or `kind`, `ranks`, `waiting`, `operation`, `sequence`, `group`, `since`, `age_s`, `doubt`,
  `reporting`, `members`, `sentence`, `mismatch`, `circle`, `sharing`, `death`, `hung_s`, `deadline`, `hints`, `source`.
- `source` of a verdict: `tapes`, `flight recorder`, or `agents` if ranks have no tape here and the agents of all nodes
  have reported more than these tapes show; then only `kind`, `ranks`, `operation`, `sequence`, `sentence` and `hung_s`
  are known.
- `verdicts`: the verdict and, from dumps of a flight recorder, all others of its kind that name other ranks.
- `undecided`: null, or why there is no verdict on ranks that have died here: others have no tape on this node.
- `kind` of a verdict: `shared_group`, `mismatched`, `dead`, `frozen`, `circular`, `unmatched`, `absent`, `rendezvous`,
  `device`, `stuck`, `transport`, `unknown`. An agent's may also be `unreachable`, which tapes do not show.
- `mismatch` of a verdict: null, or `field` (`operation`, `dtype`, `shape`, `reduce op`, `root`, `split sizes`,
  `dimensions`, `group name`, `group members`), `sequence` of the call in question, and `parties` (`value`, `ranks`),
  the largest first.
- `circle` of a verdict: null, or a list of ranks, each of which waits for the next one and the last for the first:
  `rank`, and where it waits: `operation`, `sequence`, `group`, `call_site`; `ranks` that wait there with it, for the
  rank `waits_for` (null if that is not known).
- `sharing` of a verdict: null unless its kind is `shared_group`; else `ranks` of which it is seen, and the two `calls`:
  `operation`, `call_site`, and `caller`, which is what the thread runs (null where that is not known).
- `death` of a verdict: null unless its kind is `dead`; else `order` (`seen` by an agent, or `inferred`) and `lead_s`,
  how long after it the next rank died (null if none did, or if that is not known); `is_silence` is true if the ranks
  only fell silent long before the others: they died or were stopped, or native code did not release their GILs.
- `hung_s` of a verdict: null, or how long the job hung before it was ended.
- `deadline` of a verdict: null, or when the backend first ends a wait: `rank`, `backend`, `then` (`raises`, `ends`,
  `aborts`, `nothing`), `timeout_s`, and `time`, which may have passed.
- `hints` of a verdict: sentences on PyTorch's own timeouts, as far as they matter to it.
- `ended_together`: null, or `sentence`, about ranks that something ended at the same moment: none of them is blamed.
- `death` of a rank: null unless an agent saw its process end; else `time`, `signal`, `exit_code` (null if it is not
  known), `error` (null, or type and first line of the exception, from torchelastic's error file), `out_of_memory`
  (null, or what counted a kill at that moment: `cgroup` or `node`), and `exact`, which is false if the time was
  derived from the tape's lock.
- a group: `key`, the same on all its members, and `name`.
- `ranks`: for each rank that reports, ascending: `rank`, `life` (`running`, `finished`, `failed`, `dead`),
  `exception`, `pid`, `tape`, `step`, `death`, `last_sign_of_life`, `silent_s`, `open` (operations, first those in which
  it waits), `last_finished` (an operation), `stack` (`written`, `source`, and the call site in which it was). The
  source of a stack is the rank's own `thread`, or a `signal` while the GIL was held. `worker` is null, or what the
  rank is as a worker of RPC: `name`, `joining_s` and `leaving_s` (for how long it has waited in `init_rpc` and
  `rpc.shutdown`, or null), and `calls`: each with `function`, `peer` (the other worker, or null), `served` (whether
  this rank runs it), `age_s` and `call_site`.
- an operation: `operation`, `sequence`, `group`, `peers` (ranks that take part in it), `tag`, `entered`, `age_s` (since
  the rank began to wait for it, or entered it), `waits`, `ended`, `exception`, `call_site` (`function`, `file`,
  `line`), `call_path` (the frames that led to it, innermost first, each a text; those of libraries are one).
- `stuck_calls`: why remote procedure calls cannot go on, a sentence each.
- `findings`: what is wrong without a stall (values that are not finite, replicas that differ, failed checkpoints, slow
  ranks), a sentence each, as far as the tapes still show it or this node's agent has written it down.
- `past_findings`: what the agent has found and no longer held at that moment, a sentence each; no `problem`.
- `warnings`: tapes or other files that could not be read, and why.
- `sections`: what texts of other tools say, by their kind.
- `helps`: null, or the id of the run whose ranks have started the processes of this one.
- `helpers`: a document like this one for each run of processes that these ranks have started.
"""

from __future__ import annotations

from typing import Final

from otel_torchdist.cli.diagnose.diagnosis import Diagnosis, RankAccount
from otel_torchdist.cli.diagnose.document_parts import (
    Json,
    call_site_document,
    operation_document,
    rounded,
    time_document,
    verdict_document,
    worker_document,
)
from otel_torchdist.cli.output.text import alike_in_capture, iso_time
from otel_torchdist.job.kept_results import AgentsVerdict
from otel_torchdist.job.runs.runs import Run
from otel_torchdist.model.kinds import Kernel
from otel_torchdist.model.lives import Death
from otel_torchdist.verdict.wording.ends import describe_together

SCHEMA: Final = 1


def document_of(diagnosis: Diagnosis) -> Json:
    """Build the document."""
    run, verdict = diagnosis.run, _any_verdict(diagnosis)
    return {
        "schema": SCHEMA,
        "run": {
            "id": f"{run.run_id:032x}" if run.run_id else None,
            "directory": str(run.directory),
            "host": run.host,
            "begun": iso_time(run.begun_ns),
            "world_size": run.world_size,
            "capture": _capture(run),
        },
        "coverage": {
            "reporting": [account.view.rank for account in diagnosis.ranks],
            "unknown": list(diagnosis.found.unseen),
        },
        "moment": {"time": time_document(diagnosis, diagnosis.moment_ns), "is_now": diagnosis.is_now, "bound": None},
        "problem": diagnosis.has_problem,
        "threshold_s": diagnosis.threshold_s,
        "verdict": verdict,
        "verdicts": [verdict] if verdict is not None else [],
        "undecided": diagnosis.undecided_text or None,
        "ended_together": _together(diagnosis),
        "ranks": [_rank(diagnosis, account) for account in diagnosis.ranks],
        "stuck_calls": list(diagnosis.stuck_calls),
        "findings": list(diagnosis.findings),
        "past_findings": list(diagnosis.past_findings),
        "warnings": list(diagnosis.warnings),
        "helps": f"{run.helps.run_id:032x}" if run.helps is not None else None,
        "helpers": [document_of(helper) for helper in diagnosis.helpers],
        "sections": {},
    }


def _capture(run: Run) -> list[Json]:
    alike = alike_in_capture(tape.identity for tape in run.tapes)
    return [
        {"kernel": None if kernel is Kernel.UNKNOWN else kernel.name.lower(), "torch": torch or None, "ranks": ranks}
        for (kernel, torch), ranks in alike.items()
    ]


def _any_verdict(diagnosis: Diagnosis) -> Json | None:
    if diagnosis.found.of_agents is not None:
        return _verdict_of_agents(diagnosis, diagnosis.found.of_agents)
    verdict = diagnosis.found.verdict
    if verdict is None:
        return None
    document = verdict_document(diagnosis, verdict, diagnosis.found.age_ns, diagnosis.verdict_text, "tapes")
    return {**document, "hung_s": _hung_s(diagnosis)}


def _verdict_of_agents(diagnosis: Diagnosis, verdict: AgentsVerdict) -> Json:
    return {
        "kind": verdict.kind,
        "ranks": list(diagnosis.found.named),
        "waiting": [],
        "operation": verdict.operation,
        "sequence": verdict.sequence,
        **dict.fromkeys(("group", "since", "age_s", "doubt", "reporting", "members")),
        "sentence": verdict.text,
        **dict.fromkeys(("mismatch", "circle", "sharing", "death")),
        "hung_s": _hung_s(diagnosis),
        "source": "agents",
    }


def _hung_s(diagnosis: Diagnosis) -> float | None:
    hung_ns = diagnosis.found.hung_ns
    return rounded(hung_ns / 1e9) if hung_ns is not None else None


def _together(diagnosis: Diagnosis) -> Json | None:
    first = diagnosis.found.ended_together
    return {"sentence": describe_together(first, not diagnosis.found.unseen)} if first is not None else None


def _death(diagnosis: Diagnosis, death: Death) -> Json:
    return {
        "time": time_document(diagnosis, death.at_ns),
        "signal": death.signal_name or None,
        "exit_code": death.exit_code,
        "error": death.error or None,
        "out_of_memory": death.oom or None,
        "exact": death.is_exact,
    }


def _rank(diagnosis: Diagnosis, account: RankAccount) -> Json:
    view = account.view
    return {
        "rank": view.rank,
        "life": account.life.value,
        "exception": view.failure or None,
        "pid": account.pid,
        "tape": account.tape,
        "step": view.step,
        "death": _death(diagnosis, view.death) if view.death is not None else None,
        "last_sign_of_life": time_document(diagnosis, account.sign_ns),
        "silent_s": rounded(diagnosis.before_s(account.sign_ns)),
        "open": [operation_document(diagnosis, operation) for operation in account.open],
        "last_finished": operation_document(diagnosis, view.last) if view.last is not None else None,
        "stack": _stack(diagnosis, account),
        "worker": worker_document(diagnosis, view.worker) if view.worker is not None else None,
    }


def _stack(diagnosis: Diagnosis, account: RankAccount) -> Json | None:
    place, stacks = account.stack, account.view.stacks
    if place is None or stacks is None:
        return None
    source = "signal" if stacks.by_signal else "thread"
    return {
        "written": time_document(diagnosis, stacks.asked_ns),
        "source": source,
        "call_site": call_site_document(place.frame),
    }
