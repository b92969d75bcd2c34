"""What all adapters do alike: they read verdicts with care, and take few nodes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deploy.actions import advice, signatures
from otel_torchdist.agent.actions.machine_advice import NodeAction
from tests.deploy.actions.verdict import REASON, adapt, changed, verdict


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the standard input is no verdict: JSONDecodeError: Expecting value: line 1 column 1 (char 0)"),
        ("[]", "the standard input is no verdict: TypeError: list indices must be integers or slices, not str"),
        ("{}", "the standard input is no verdict: KeyError: 'machine'"),
        (changed(verdict("n1"), schema=2), "the verdict has schema 2, not 1"),
    ],
)
@pytest.mark.parametrize("program", ["slurm.py", "kubernetes_node.py"])
def test_no_verdict(program: str, text: str, said: str) -> None:
    """Other input is refused, in one line."""
    assert adapt(program, text, "--act") == (1, said)


@pytest.mark.parametrize("program", ["slurm.py", "kubernetes_node.py"])
def test_nothing_to_do(program: str) -> None:
    """Without advice nothing is asked of Slurm or Kubernetes, which this machine does not have."""
    assert adapt(program, verdict(action=NodeAction.NONE, reason="no machine is blamed"), "--act") == (
        0,
        "nothing to do: no machine is blamed",
    )


@pytest.mark.parametrize("program", ["slurm.py", "kubernetes_node.py"])
def test_a_storm(program: str, tmp_path: Path) -> None:
    """A verdict that blames several nodes takes none: their common cause is no node's."""
    assert adapt(program, verdict("n1", "n2"), "--act", "--state", str(tmp_path)) == (
        1,
        "refused: the verdict blames 2 nodes (n1,n2), more than 1 at once; look at what they share: " + REASON,
    )
    assert list(tmp_path.iterdir()) == []


def test_slots_of_a_day(tmp_path: Path) -> None:
    """However many jobs ask at once, no more nodes are taken than allowed. Only refused nodes do not count."""

    def take(number: int) -> advice.Slot | None:
        try:
            return advice.take_slot(tmp_path, f"n{number}", 2)
        except advice.ActionError as error:
            assert "refused: 2 nodes have been taken today" in str(error)
            return None

    with ThreadPoolExecutor(16) as pool:
        taken = [slot for slot in pool.map(take, range(64)) if slot is not None]
    assert len(taken) == 2
    with pytest.raises(advice.UnknownOutcomeError), taken[0]:
        raise advice.UnknownOutcomeError("no answer")
    assert take(0) is None
    with pytest.raises(advice.ActionError), taken[0]:
        raise advice.ActionError("refused")
    assert take(1) is not None and take(2) is None


def test_old_slots(tmp_path: Path) -> None:
    """Files of long ago are removed, and others stay."""
    for name in ("2020-01-01.1", "notes"):
        (tmp_path / name).touch()
    slot = advice.take_slot(tmp_path, "n1", 1)
    assert sorted(tmp_path.iterdir()) == sorted([slot.path, tmp_path / "notes"])


def test_state_that_cannot_be_written(tmp_path: Path) -> None:
    """Where nodes cannot be counted, none is taken."""
    (tmp_path / "file").touch()
    with pytest.raises(advice.ActionError, match="refused: taken nodes cannot be counted"):
        advice.take_slot(tmp_path / "file", "n1", 2)


def test_one_line() -> None:
    """Reasons for operators have no line ends and control characters, and are short."""
    assert advice.in_one_line("a\nb\t c\x1b[31m", 100) == "a b c [31m"
    assert advice.in_one_line("x" * 20, 10) == "x" * 9 + "…"


def test_secrets(tmp_path: Path) -> None:
    """A secret is text or base64 behind its prefix, and not short."""
    file = tmp_path / "secret"
    for text, secret in (("whsec_" + "QUJD" * 8 + "\n", b"ABC" * 8), ("s" * 24, b"s" * 24)):
        file.write_text(text)
        assert signatures.read_secret(file) == secret
    for text in ("whsec_!", "short", ""):
        file.write_text(text)
        with pytest.raises(ValueError, match=str(file)):
            signatures.read_secret(file)


def test_outside_of_a_pod(tmp_path: Path) -> None:
    """Where there is no API server, and where its token cannot be read, one line says so."""
    state = ("--state", str(tmp_path))
    said = "there is no API server: run in a pod, or give --server https://…"
    assert adapt("kubernetes_node.py", verdict("n1"), *state) == (1, said)
    code, said = adapt("kubernetes_node.py", verdict("n1"), *state, "--server", "https://127.0.0.1:1")
    assert code == 1 and said.startswith("token or certificate cannot be read: ")
