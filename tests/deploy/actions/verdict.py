"""Verdicts as adapters read them, and adapters as agents run them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from otel_torchdist.agent.actions.machine_advice import MachineAdvice, NodeAction
from otel_torchdist.agent.actions.stalled_run import StalledRun
from otel_torchdist.node.job.description import JobDescription
from otel_torchdist.telemetry import semconv
from tests.support.repository import REPOSITORY

ADAPTERS: Final = REPOSITORY / "deploy" / "actions"
REASON: Final = "dead: n1: GPU of rank 3: Xid 79 (it has fallen off the bus)"


def verdict(
    *hosts: str,
    action: NodeAction = NodeAction.DRAIN,
    reason: str = REASON,
    job: JobDescription | None = None,
    trace_id: str = "5" * 32,
) -> str:
    """The JSON of a verdict that blames machines, as the agent writes it."""
    return StalledRun(
        run="abcdef01" * 4,
        trace_id=trace_id,
        verdict="dead",
        ranks="3",
        text="rank 3 was killed",
        attributes={semconv.VERDICT: "dead", semconv.VERDICT_RANKS: "3"},
        directory=Path("/none"),
        nonces=frozenset(),
        local_ranks=(),
        occasion="machine",
        machine=MachineAdvice(action, reason, hosts),
        job=job or JobDescription(),
    ).to_json()


def adapt(program: str, document: str, *arguments: str, environ: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run an adapter; returns its exit code and the line that it prints."""
    done = subprocess.run(
        [sys.executable, ADAPTERS / program, *arguments],
        input=document,
        capture_output=True,
        text=True,
        timeout=90,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(environ or {})},
    )
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
    return done.returncode, done.stdout.rstrip("\n")


def changed(document: str, **values: Any) -> str:
    """The document with other values of some keys."""
    return json.dumps({**json.loads(document), **values})
