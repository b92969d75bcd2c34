"""When an agent writes bundles: once for an incident, at the end of the ranks, and when it is asked to end."""

from __future__ import annotations

import errno
import json
import os
import signal
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otel_torchdist.agent.thread import ReaderThread
from otel_torchdist.config import Config
from otel_torchdist.node.job.agent_notes import bundled_ns
from otel_torchdist.node.job.bundled import BundleManifest
from otel_torchdist.sources.bundles.folder import BundleFolder
from otel_torchdist.sources.bundles.reading import manifest_of
from tests.agent.conftest import JOB, quiet_outputs
from tests.agent.own_agent import OwnAgent
from tests.support.commands.running import Running
from tests.support.ranks.job_ranks import Ranks
from tests.support.waiting import until


def manifests(folder: Path) -> list[BundleManifest]:
    """The manifests of the bundles in a folder, oldest first."""
    found = sorted(folder.glob("*.tar.gz"), key=lambda path: path.stat().st_mtime_ns) if folder.exists() else []
    return [manifest for path in found if (manifest := manifest_of(path)) is not None]


def reasons(folder: Path) -> list[tuple[str, str]]:
    """Reason and verdict of each bundle."""
    return [(manifest.reason, manifest.verdict) for manifest in manifests(folder)]


@pytest.fixture
def own_agent(base: Path) -> Iterator[Callable[[Path], OwnAgent]]:
    """Starts agents in this process that write bundles into a folder."""
    agents: list[OwnAgent] = []

    def start(folder: Path) -> OwnAgent:
        agents.append(OwnAgent(base / JOB, stall_timeout=0.5, bundles=folder, announce=False))
        return agents[-1]

    yield start
    for agent in agents[-1:]:
        agent.close()


def test_once_for_a_stall(begin: Callable[..., Ranks], own_agent: Callable[[Path], OwnAgent], tmp_path: Path) -> None:
    """A stall gives one bundle while it lasts, whatever the number of turns, verdicts and agents."""
    ranks, bundles = begin(2), tmp_path / "bundles"
    agent = own_agent(bundles)
    ranks.meet(1)
    ranks.send(0, "enter 2")
    agent.turn_until(lambda: reasons(bundles))
    began = time.monotonic()
    agent.turn_until(lambda: time.monotonic() - began > 1.5)
    assert reasons(bundles) == [("verdict", "absent")]
    [path] = bundles.glob("*.tar.gz")
    with tarfile.open(path) as bundle:
        verdict = bundle.extractfile(f"{path.name.removesuffix('.tar.gz')}/verdict.json")
        assert verdict is not None
        assert json.load(verdict)["ranks"] == "1"
    agent.close()
    agent = own_agent(bundles)  # the next agent finds the bundle of the incident
    agent.turn_until(lambda: agent.agent.reader.watch.ongoing)
    agent.close()
    first, *later = reasons(bundles)
    assert first == ("verdict", "absent")
    assert {*later} == {("agent_ends", "")}


def test_death_and_end(begin: Callable[..., Ranks], own_agent: Callable[[Path], OwnAgent], tmp_path: Path) -> None:
    """A killed rank gives a bundle at once; when all have ended there is another, and the launcher is told."""
    ranks, bundles = begin(2), tmp_path / "bundles"
    agent = own_agent(bundles)
    ranks.meet(1)
    ranks.send(0, "enter 2")
    agent.turn_until(lambda: agent.agent.reader.watch.seen)
    ranks.kill(1)
    agent.turn_until(lambda: ("verdict", "dead") in reasons(bundles))
    assert bundled_ns(Path(agent.agent.directories[0])) == 0
    ranks.kill(0)
    agent.turn_until(lambda: ("end", "") in reasons(bundles))
    until(lambda: bundled_ns(agent.agent.directories[0]) > 0)
    agent.close()
    assert reasons(bundles) == [("verdict", "dead"), ("end", "")]


def test_healthy_end(begin: Callable[..., Ranks], own_agent: Callable[[Path], OwnAgent], tmp_path: Path) -> None:
    """A run that ends well leaves one bundle, even if the agent is closed at once; a later agent adds none."""
    ranks, bundles = begin(2), tmp_path / "bundles"
    agent = own_agent(bundles)
    ranks.meet(1)
    agent.turn_until(lambda: agent.agent.reader.watch.seen)
    ranks.exit()
    agent.close()
    assert reasons(bundles) == [("end", "")]
    assert manifests(bundles)[0].host == os.uname().nodename
    own_agent(bundles).close()
    assert reasons(bundles) == [("end", "")]


def test_bundles_do_not_wait_for_a_directory(
    begin: Callable[..., Ranks], own_agent: Callable[[Path], OwnAgent], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If the directory cannot be written, verdicts come as before, and one warning names the setting."""
    (tmp_path / "bundles").write_text("a file")
    ranks = begin(2)
    agent = own_agent(tmp_path / "bundles")
    ranks.meet(1)
    ranks.send(0, "enter 2")
    agent.turn_until(lambda: agent.agent.reader.watch.ongoing)
    agent.close()
    warnings = [text for text in caplog.messages if "OTEL_PYTHON_TORCHDIST_BUNDLES" in text]
    assert warnings == ["OTEL_PYTHON_TORCHDIST_BUNDLES: no bundle of evidence could be written: File exists"]


def test_hanging_directory(
    begin: Callable[..., Ranks],
    own_agent: Callable[[Path], OwnAgent],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A file system that hangs holds up neither verdicts nor the agent's end; a warning says what is missing."""
    hangs, goes_on = threading.Event(), threading.Event()

    def hang(*_: object) -> Path:
        hangs.set()
        goes_on.wait(60)
        raise OSError(errno.EIO, "gone")

    monkeypatch.setattr(BundleFolder, "write", hang)
    ranks = begin(2)
    agent = own_agent(tmp_path / "bundles")
    ranks.meet(1)
    ranks.send(0, "enter 2")
    agent.turn_until(hangs.is_set)
    ranks.send(0, "end")
    agent.turn_until(lambda: not agent.agent.reader.watch.ongoing)  # the stall is over, and that is seen
    began = time.monotonic()
    agent.close()
    assert time.monotonic() - began < 10
    goes_on.set()
    warnings = [text for text in caplog.messages if "OTEL_PYTHON_TORCHDIST_BUNDLES" in text]
    assert warnings[0] == (
        "OTEL_PYTHON_TORCHDIST_BUNDLES: the last bundle of evidence was not written within 2 s: it is left out"
    )


@pytest.mark.thorough
def test_asked_to_end(begin: Callable[..., Ranks], agent: Callable[..., Running], tmp_path: Path) -> None:
    """On SIGTERM while ranks run, the last bundle is written within ten seconds; it shows the ranks running."""
    ranks, bundles = begin(2), tmp_path / "bundles"
    ranks.meet(1)
    running = agent(OTEL_PYTHON_TORCHDIST_BUNDLES=str(bundles))
    running.wait_for("reading")
    running.wait_for("found")
    began = time.monotonic()
    running.process.send_signal(signal.SIGTERM)
    assert running.end() == 0
    assert time.monotonic() - began < 10
    assert reasons(bundles) == [("agent_ends", "")]
    [path] = bundles.glob("*.tar.gz")
    with tarfile.open(path) as bundle:
        moment = next(member for member in bundle.getmembers() if member.name.endswith("/moment.json"))
        content = bundle.extractfile(moment)
        assert content is not None
        assert len(json.load(content)["running"]) == 2


def test_thread_writes_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A rank that reads its own tape says that it writes no bundles, and names the setting."""
    ReaderThread(Config(bundles=tmp_path / "bundles"), quiet_outputs)
    assert caplog.messages == [
        "OTEL_PYTHON_TORCHDIST_BUNDLES needs an agent, but here the tapes are read by a thread of the rank: "
        "no bundles are written"
    ]
