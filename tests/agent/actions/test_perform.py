"""Single actions: a command, and how they are configured."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from otel_torchdist.agent.actions.perform import run_command
from otel_torchdist.agent.actions.stalled_run import StalledRun
from otel_torchdist.agent.actions.triggers import supported_in_rank
from otel_torchdist.config import Action, ActionKind, parse_actions, parse_finding_actions

# --- What the command learns of a stall -------------------------------------------------------------------------------


def test_command_learns_of_the_stall(stall: StalledRun, tmp_path: Path) -> None:
    """The command gets the verdict in its environment and as JSON on standard input; no shell parses its words."""
    script = tmp_path / "page.py"
    script.write_text(
        "import json, os, sys\n"
        "stall = json.load(sys.stdin)\n"
        "named = os.environ['TORCHDIST_STALL_VERDICT'], os.environ['TORCHDIST_STALL_RANKS']\n"
        "print(sys.argv[1], *named, stall['trace_id'])\n"
        "sys.exit(3)\n"
    )
    said = run_command(f"{sys.executable} {script} '$HOME; echo'", stall)
    assert said == f"exited with code 3: $HOME; echo absent 2 {stall.trace_id}"


def test_command_that_hangs(stall: StalledRun) -> None:
    """A command that hangs is killed in time, with the processes that it started."""
    began = time.monotonic()
    said = run_command("sh -c 'sleep 60 & sleep 60'", stall, timeout_s=0.3)
    assert said == "took longer than 0.3 s and was killed"
    assert time.monotonic() - began < 10


# --- What the setting accepts, and what of it can be done where -------------------------------------------------------


SETTING = "OTEL_PYTHON_TORCHDIST_ON_STALL"


def test_list_of_actions() -> None:
    """Actions keep the order in which they are written, each once; a command takes the rest, commas included."""
    assert parse_actions(" dump , abort,dump, callback:alarm.bell:ring,command:/bin/page --to a,b ") == (
        Action(ActionKind.DUMP),
        Action(ActionKind.ABORT),
        Action(ActionKind.CALLBACK, "alarm.bell:ring"),
        Action(ActionKind.COMMAND, "/bin/page --to a,b"),
    )
    assert parse_actions("") == ()


@pytest.mark.parametrize(
    "text",
    [
        "explode",
        "dump,explode",
        "command:",
        "command",
        "callback:ring",
        "callback:alarm:ring()",
        "dump:now",
        "dump,,abort",
        "rescue",
        "rescue:save",
        "abort,rescue:job:save",
    ],
)
def test_what_is_no_list_of_actions(text: str) -> None:
    """One bad word invalidates the whole setting: half of the requested actions may be worse than none."""
    with pytest.raises(ValueError):
        parse_actions(text)


def test_rescue_is_for_stalls() -> None:
    """Ranks are rescued before they are ended, and only where they wait."""
    assert parse_actions("rescue:job:save,abort") == (Action(ActionKind.RESCUE, "job:save"), Action(ActionKind.ABORT))
    assert parse_finding_actions("dump,abort") == parse_actions("dump,abort")
    with pytest.raises(ValueError):
        parse_finding_actions("rescue:job:save,abort")


def test_dump_and_abort_need_an_agent(caplog: pytest.LogCaptureFixture) -> None:
    """In a reader thread of a rank both are skipped, with one warning that names them and the setting."""
    assert supported_in_rank(parse_actions("dump,callback:a:b,abort"), SETTING) == [Action(ActionKind.CALLBACK, "a:b")]
    [warning] = caplog.messages
    assert warning.startswith("OTEL_PYTHON_TORCHDIST_ON_STALL=dump,abort needs an agent")
    assert supported_in_rank(parse_actions("log"), SETTING) == [Action(ActionKind.LOG)]
    assert len(caplog.messages) == 1
