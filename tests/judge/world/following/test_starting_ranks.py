"""Ranks that their rank 0 has started, and for which it waits longer."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import pytest

from otel_torchdist.judge.world.following.starting_ranks import PATIENCE_NS, patience_ns
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.tape.identity import TapeIdentity, identify, process_start_ticks
from tests.support.tapes.made_records import made_operation

# The child says itself that it has started: for a moment after `exec`, the kernel shows no environment.
STARTS = """
import subprocess, sys
environ = dict(pair.split("=") for pair in sys.argv[1:])
with subprocess.Popen(["sh", "-c", "echo started; read line"], stdin=subprocess.PIPE, env=environ) as child:
    sys.stdin.read()
"""


@contextmanager
def rank_with_child(environ: Mapping[str, str], *of_child: str) -> Iterator[TapeIdentity]:
    """The identity of a process that has started another one, which has these variables."""
    command = [sys.executable, "-c", STARTS, f"PATH={os.environ['PATH']}", *of_child]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **environ}
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"started\n"
        ticks = process_start_ticks(parent.pid)
        assert ticks is not None
        yield replace(identify(0, 0, 2, 64), pid=parent.pid, pid_start_ticks=ticks)
        parent.communicate()


@pytest.mark.process
@pytest.mark.parametrize(
    ("own", "of_child", "kind", "expected_ns"),
    [
        ({}, ["LOCAL_RANK=1"], RecordKind.RENDEZVOUS, PATIENCE_NS),
        ({"LOCAL_RANK": "0"}, ["LOCAL_RANK=1"], RecordKind.RENDEZVOUS, PATIENCE_NS),
        ({"LOCAL_RANK": "0"}, ["LOCAL_RANK=0"], RecordKind.RENDEZVOUS, 0),
        ({}, [], RecordKind.RENDEZVOUS, 0),
        ({}, ["LOCAL_RANK=1"], RecordKind.OPERATION, 0),
    ],
    ids=["Lightning", "another number", "a program of a rank of torchrun", "any program", "not at the launch"],
)
def test_patience(own: dict[str, str], of_child: list[str], kind: RecordKind, expected_ns: int) -> None:
    """Only a rank that has started a process with another local rank waits longer, and only at the launch."""
    with rank_with_child(own, *of_child) as identity:
        operation, user = made_operation(1, 1, kind=kind), os.geteuid()
        assert patience_ns(operation, identity, user) == expected_ns
        assert patience_ns(operation, identity, user + 1) == 0, "another user's tape"
        assert patience_ns(operation, replace(identity, pid_start_ticks=1), user) == 0, "a later process"
