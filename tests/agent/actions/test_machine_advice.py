"""The advice on machines: drain with evidence, exclude at the second incident, and nothing else."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_torchdist.agent.actions.machine_advice import (
    MAX_KEPT,
    NO_MACHINE,
    Incidents,
    MachineAdvice,
    NodeAction,
    advise,
)
from otel_torchdist.errors import TapeError
from otel_torchdist.model.reports.finding import AttributeValue, FindingKind
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.telemetry import semconv

OF_THE_PROGRAM = ("absent", "mismatched", "circular", "unmatched")
DAY_S = 86_400


def attributes(kind: str = "stuck", fault: str = "suspected", *hosts: str) -> dict[str, AttributeValue]:
    """A verdict that blames machines, as attributes."""
    return {
        semconv.VERDICT: kind,
        semconv.MACHINE_FAULT: fault,
        semconv.MACHINE_HOSTS: list(hosts or ("n1",)),
        semconv.MACHINE_REASON: "n1: because",
    }


@pytest.fixture
def incidents(tmp_path: Path) -> Incidents:
    """Incidents of the last week."""
    return Incidents(tmp_path / "shared" / "incidents", 7)


@given(
    kind=st.sampled_from([*(kind.value for kind in VerdictKind), *(kind.value for kind in FindingKind), "new", ""]),
    fault=st.sampled_from(["shown", "suspected", "", "other"]),
    hosts=st.one_of(st.none(), st.text(), st.lists(st.text(max_size=300), max_size=80)),
)
def test_never_for_the_program(kind: str, fault: str, hosts: AttributeValue | None) -> None:
    """Whatever an agent of another node claims, verdicts of the program, unknown kinds and findings take no machine."""
    claimed: dict[str, AttributeValue] = {semconv.VERDICT: kind, semconv.MACHINE_FAULT: fault}
    advice = advise(claimed if hosts is None else {**claimed, semconv.MACHINE_HOSTS: hosts})
    if kind in OF_THE_PROGRAM or kind not in {known.value for known in VerdictKind}:
        assert advice == NO_MACHINE
    if advice.action is not NodeAction.NONE:
        assert advice.action is NodeAction.DRAIN and fault == "shown" and advice.hosts
    assert all(host.isprintable() and len(host) <= 255 for host in advice.hosts)


def test_drain() -> None:
    """Evidence of the machine is enough, at the first incident, and for several machines."""
    advice = advise(attributes("dead", "shown", "n1", "n2"))
    assert advice == MachineAdvice(NodeAction.DRAIN, "dead: n1: because", ("n1", "n2"))


def test_second_incident(incidents: Incidents) -> None:
    """Without evidence, the machine is left out once two runs have had an incident there; repetitions count once."""
    assert advise(attributes()).action is NodeAction.NONE
    incidents.add("n1", "run 1", "a" * 32, "stuck")
    incidents.add("n1", "run 1", "a" * 32, "stuck")
    incidents.add("n1", "run 1", "b" * 32, "dead")
    incidents.add("n2", "run 2", "c" * 32, "stuck")
    advice = advise(attributes(), incidents)
    assert advice == MachineAdvice(NodeAction.NONE, "stuck: n1: because; incident 1 in 7 days", ("n1",), 1)
    incidents.add("n1", "run 2", "c" * 32, "stuck")
    advice = advise(attributes(), incidents)
    assert advice == MachineAdvice(NodeAction.EXCLUDE, "stuck: n1: because; incident 2 in 7 days", ("n1",), 2)
    assert advise(attributes("absent"), incidents) == NO_MACHINE
    assert advise(attributes("stuck", "suspected", "n1", "n2"), incidents).action is NodeAction.NONE


def test_old_and_damaged(incidents: Incidents, tmp_path: Path) -> None:
    """Incidents of long ago, of another machine or from the future, and files that are no incident, do not count."""
    incidents.add("n1", "run 1", "a" * 32, "stuck")
    folder = tmp_path / "shared" / "incidents" / "n1"
    [file] = folder.iterdir()
    record = json.loads(file.read_text())
    for name, changes in {
        "b": {"run": "2", "at": time.time() - 8 * DAY_S},
        "c": {"run": "3", "host": "n2"},
        "d": {"run": "4", "at": time.time() + 3 * DAY_S},
        "e": {"run": "5", "at": "today"},
    }.items():
        (folder / f"{name}.json").write_text(json.dumps({**record, **changes}))
    (folder / "f.json").write_text("[]")
    (folder / "g.json").write_bytes(b"\xff")
    (folder / "h.json").mkdir()
    assert incidents.count("n1") == 1


@pytest.mark.parametrize("host", ["..", "a/b", "", "x" * 255, ".n1", "n1\n", "ä"])
def test_names_of_machines(incidents: Incidents, tmp_path: Path, host: str) -> None:
    """Whatever a machine is called, its incidents lie in a folder of the directory."""
    incidents.add(host, "run", "a" * 32, "stuck")
    assert incidents.count(host) == 1
    [folder] = (tmp_path / "shared" / "incidents").iterdir()
    assert len(folder.name) == 64


def test_bounded_and_at_once(incidents: Incidents, tmp_path: Path) -> None:
    """Many agents may add incidents at the same time; all of them count, up to a number of files for each machine."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: incidents.add("n1", f"run {number}", f"{number:032x}", "stuck"), range(40)))
    assert incidents.count("n1") == 40
    for number in range(40, 100):
        incidents.add("n1", f"run {number}", f"{number:032x}", "stuck")
    assert len(list((tmp_path / "shared" / "incidents" / "n1").iterdir())) == MAX_KEPT


def test_directory_of_another_user(tmp_path: Path) -> None:
    """Others cannot make incidents up: a directory that is not this user's is refused."""
    if os.geteuid():
        pytest.skip("needs root: gives a directory to another user")
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", 65534, 65534)
    with pytest.raises(TapeError):
        Incidents(tmp_path / "theirs", 7).add("n1", "run", "a" * 32, "stuck")
