"""The life of `otel-torchdist mcp`: what it prints, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from otel_torchdist.cli.exit_codes import ExitCode
from tests.support.commands.assistant import assistant, need_sdk
from tests.support.commands.running import SCRIPT, environment
from tests.support.waiting import until

HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}


@contextmanager
def serving(base: Path, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    """A server that has greeted its client."""
    need_sdk()
    process = subprocess.Popen(
        [str(SCRIPT), "mcp"],
        env={**environment(base), **environ},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        say(process, HELLO)
        assert hear(process)["result"]["serverInfo"]["name"] == "otel-torchdist"
        say(process, {"jsonrpc": "2.0", "method": "notifications/initialized"})
        yield process
    finally:
        process.kill()
        process.communicate()


def say(process: subprocess.Popen[bytes], message: object) -> None:
    """Send a message."""
    assert process.stdin is not None
    process.stdin.write(json.dumps(message).encode() + b"\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[bytes]) -> dict:  # type: ignore[type-arg]
    """Receive a message."""
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.thorough),
        pytest.param(signal.SIGHUP, marks=pytest.mark.thorough),
    ],
)
def test_signal(base: Path, number: signal.Signals) -> None:
    """Ctrl-C and other signals end it within a second, although it blocks in reading, without a traceback."""
    with serving(base) as process:
        began = time.monotonic()
        os.killpg(process.pid, number)
        assert process.wait(10) == ExitCode.of_signal(number)
        assert time.monotonic() - began < 5
        assert process.communicate()[1] == b""


def test_end_of_input(base: Path) -> None:
    """It ends with success once the client closes its side, and has printed nothing but the protocol."""
    with serving(base) as process:
        assert process.stdin is not None
        say(process, {"jsonrpc": "2.0", "id": 2, "method": "tools/list"})
        assert len(hear(process)["result"]["tools"]) == 5
        process.stdin.close()
        process.stdin = None
        assert process.wait(10) == 0
        assert process.communicate() == (b"", b"")


def test_nobody_reads(base: Path) -> None:
    """A client that no longer reads ends the server with the code of a broken pipe, without a traceback."""
    with serving(base) as process:
        assert process.stdout is not None
        process.stdout.close()
        process.stdout = None
        say(process, {"jsonrpc": "2.0", "id": 2, "method": "tools/list"})
        assert process.wait(10) == ExitCode.BROKEN_PIPE
        assert process.communicate()[1] == b""


def test_garbage(base: Path) -> None:
    """Lines that are no messages do not end it, and no output but the protocol's follows."""
    with serving(base) as process:
        assert process.stdin is not None
        process.stdin.write(b"hello\n\xff\xfe\n{}\n")
        say(process, {"jsonrpc": "2.0", "id": 7, "method": "ping"})
        while (message := hear(process)).get("id") != 7:
            assert message["jsonrpc"] == "2.0"
        assert message["result"] == {}


def test_death_of_the_client(base: Path, tmp_path: Path) -> None:
    """A server does not outlive a client that is killed."""
    need_sdk()
    hello = json.dumps(HELLO).encode() + b"\n"
    code = f"""
import subprocess, sys, time
server = subprocess.Popen({[str(SCRIPT), "mcp"]!r}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
server.stdin.write({hello!r})
server.stdin.flush()
server.stdout.readline()
print(server.pid, flush=True)
time.sleep(600)
"""
    client = subprocess.Popen([sys.executable, "-c", code], env=environment(base), stdout=subprocess.PIPE)
    with client:
        assert client.stdout is not None
        pid = int(client.stdout.readline())
        client.kill()
    until(lambda: not _runs(pid))


def _runs(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


@pytest.mark.parametrize("ends", ["closes", "interrupts"])
def test_end_during_a_call(base: Path, tmp_path: Path, ends: str) -> None:
    """A call in progress delays neither the end of input nor a signal, and leaves no temporary files."""
    with serving(base, TMPDIR=str(tmp_path)) as process:
        assert process.stdin is not None
        for number in range(20):
            call = {"name": "diagnose", "arguments": {}}
            say(process, {"jsonrpc": "2.0", "id": 10 + number, "method": "tools/call", "params": call})
        if ends == "closes":
            process.stdin.close()
            process.stdin = None
        else:
            os.kill(process.pid, signal.SIGINT)
        assert process.wait(10) == (0 if ends == "closes" else ExitCode.INTERRUPTED)
        out, err = process.communicate()
        assert err == b""
        assert all(json.loads(line)["jsonrpc"] == "2.0" for line in out.splitlines())
    assert os.listdir(tmp_path) == []


def test_two_clients(base: Path) -> None:
    """Each client has a server of its own; the end of one does not affect the other."""
    with assistant(base) as first:
        with assistant(base) as second:
            assert first.call("list_runs") == second.call("list_runs")
        assert first.call("list_runs")["runs"] == []


@pytest.mark.parametrize("package", ["mcp", "mcp_types"])
def test_without_the_sdk(base: Path, package: str) -> None:
    """Without the package, or with its version 1, which lacks `mcp_types`, one line names the extra."""
    code = f"""
import sys
sys.modules[{package!r}] = None
sys.argv = ["otel-torchdist", "mcp"]
from otel_torchdist.cli import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(base), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == ExitCode.UNAVAILABLE
    assert (done.stdout, done.stderr) == (
        "",
        "otel-torchdist: the package mcp, version 2, is not installed: pip install 'otel-torchdist[mcp]'\n",
    )
