"""How an agent is started: by a Python that has the program's modules, and without the program noticing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_torchdist.agent.launch import spawn as boot_report
from otel_torchdist.agent.launch.detached import ChildrenAwaitedError, awaits_any_child, run_detached
from otel_torchdist.agent.launch.interpreter import find_interpreter, module_path, why_no_interpreter
from otel_torchdist.agent.launch.spawn import BOOT, spawn_agent
from tests.agent.training import WORKERS, environment
from tests.support.launch.forked_ranks import ORDINARY_END
from tests.support.launch.warm_python import WarmPython
from tests.support.receivers.otlp_receiver import OtlpReceiver
from tests.support.tapes.tapes import open_descriptors, settled_descriptors
from tests.support.waiting import until

INSTALLED = f"{sys.exec_prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}"


ENDS_AT_ONCE = BOOT.replace("main(sys.argv[1])", "")
"""An agent that ends once it has found its modules: the tests check how it gets there."""


def nothing() -> None:
    """Do nothing; called when the agent is on its own."""


@pytest.mark.parametrize(
    "name",
    ["python", "python3.11", "python3.13t", "python3.11-dbg", "pypy3.10", "Python", ".python3.12-wrapped", "graalpy"],
)
def test_interpreters_are_known_by_their_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every usual name of an interpreter is recognized."""
    monkeypatch.setattr(sys, "executable", f"/opt/bin/{name}")
    assert find_interpreter() == f"/opt/bin/{name}"


def test_a_link_to_an_interpreter_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A link of any name to a Python runs `-c` as that Python does."""
    (tmp_path / "train").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "train"))
    assert find_interpreter() == sys.executable


@pytest.mark.parametrize("name", ["", "train", "uwsgi", "python-train", "kit"])
def test_a_host_program_is_none(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that embeds Python is not started again; the Python of its installation is."""
    monkeypatch.setattr(sys, "executable", name and f"/opt/bin/{name}")
    assert find_interpreter() == INSTALLED
    monkeypatch.setattr(sys, "exec_prefix", "/nowhere")
    monkeypatch.setattr(sys, "base_exec_prefix", "/nowhere")
    assert find_interpreter() == ""
    assert why_no_interpreter() == (
        f"/opt/bin/{name} is not a Python interpreter" if name else "the path of the Python interpreter is unknown"
    )


@pytest.mark.parametrize("how", ["frozen", "oxidized", "__compiled__"])
def test_a_frozen_application_is_none(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program with its modules inside is not started again, even under the name of an interpreter."""
    if how == "__compiled__":
        compiled = types.SimpleNamespace(standalone=True, onefile=False)
        monkeypatch.setattr(sys.modules["__main__"], how, compiled, raising=False)
    else:
        monkeypatch.setattr(sys, how, True, raising=False)
    assert find_interpreter() == ""
    assert why_no_interpreter() == f"{sys.executable} is an application with an embedded Python"
    assert "OTEL_PYTHON_TORCHDIST_READER=thread" in spawn_agent(Path("/nowhere"), nothing)


def test_what_is_no_text_in_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A `Path`, bytes, or an entry that cannot be passed to a process are left out, as Python leaves them out."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    path = [tmp_path, b"bytes", "", "here", "a\0b", "__editable__.x.finder.__path_hook__", "/opt/app.zip", None]
    assert module_path(path) == [
        str(tmp_path),
        f"{tmp_path}/here",
        "__editable__.x.finder.__path_hook__",
        "/opt/app.zip",
    ]


def test_the_standard_library_comes_first() -> None:
    """A `queue.py` beside the script is never taken for Python's."""
    library = os.path.dirname(os.__file__)
    assert module_path(["/my/script", library, "/my/packages"]) == [library, "/my/script", "/my/packages"]


def test_modules_in_the_working_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The user's files with the names of Python's modules do not keep the agent from starting."""
    for name in ("json", "os", "re", "enum", "encodings", "queue", "opentelemetry"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('mine')")
    monkeypatch.chdir(tmp_path)
    assert spawn_agent(tmp_path, nothing, boot=ENDS_AT_ONCE) == ""


def test_a_path_that_is_not_utf8(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Folders of any name are found by the agent too, in whatever locale it starts."""
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xc3\xa9")
    os.mkdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("LC_ALL", "C")
    assert spawn_agent(Path(folder), nothing, boot=ENDS_AT_ONCE) == ""


@pytest.mark.parametrize(
    "flags", [["-I", "-X", "utf8"], pytest.param(["-E", "-s", "-B"], marks=pytest.mark.thorough), ["-W", "error"]]
)
def test_flags_of_the_interpreter(flags: list[str], tmp_path: Path) -> None:
    """However Python was started, the agent finds its modules."""
    script = "import sys; sys.path[:] = eval(sys.argv[1]); from otel_torchdist.agent.launch import spawn\n"
    script += f"print(spawn.spawn_agent({str(tmp_path)!r}, lambda: None, boot=sys.argv[2]) or 'started')"
    command = [sys.executable, *flags, "-c", script, repr(sys.path), ENDS_AT_ONCE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.stdout == "started\n", done.stderr


def test_why_an_agent_does_not_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The reason why the agent's modules cannot be found is reported, not lost."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [entry for entry in sys.path if "site-packages" not in entry])
        assert "ModuleNotFoundError" in spawn_agent(tmp_path, nothing)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert "not found" in spawn_agent(tmp_path, nothing)


def test_no_interpreter_in_spite_of_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A program that does not run our code is killed; instrumentation was off in it, so it starts nothing more."""
    application, seen = tmp_path / "python", tmp_path / "seen"
    application.write_text(f'#!/bin/sh\necho "$$ $OTEL_PYTHON_TORCHDIST_ENABLED" >> {seen}\nexec sleep 60\n')
    application.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(application))
    monkeypatch.setenv("OTEL_PYTHON_TORCHDIST_ENABLED", "true")
    assert "did not start within 1 s" in spawn_agent(tmp_path, nothing, timeout_s=1.0)
    [line] = seen.read_text().splitlines()
    process, enabled = line.split()
    assert enabled == "false"
    until(lambda: not Path(f"/proc/{process}").exists(), what="it was not killed")


def test_without_a_shell(tmp_path: Path) -> None:
    """In a container without a shell Python itself forks."""
    assert spawn_agent(tmp_path, nothing, boot=ENDS_AT_ONCE, shell="/nowhere/sh") == ""


def test_descriptors_stay_here(tmp_path: Path) -> None:
    """A socket that a library opened without "close on exec" is not held by the agent; nor is its report's pipe."""
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    before = settled_descriptors()
    assert spawn_agent(tmp_path, nothing, boot=f"{ENDS_AT_ONCE}import time; time.sleep(5)") == ""
    assert open_descriptors() == before
    os.close(writing)
    os.set_blocking(reading, False)
    assert os.read(reading, 1) == b""  # no other process can write
    os.close(reading)


@pytest.fixture
def reaped() -> Iterator[list[int]]:
    """Children that a SIGCHLD handler reaps without checking which they are, as many programs have one."""
    found: list[int] = []

    def handler(*_: object) -> None:
        while True:
            try:
                process, _status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if process == 0:
                return
            found.append(process)

    before = signal.signal(signal.SIGCHLD, handler)
    yield found
    signal.signal(signal.SIGCHLD, before)


def test_a_handler_does_not_meet_our_child(reaped: list[int]) -> None:
    """A handler that reaps whatever has ended hardly ever reaps our child."""
    starts = 10
    ended = threading.Event()

    def run() -> None:
        for _ in range(starts):
            # A busy machine needs longer for a child than others are held up.
            run_detached(["/bin/true"], {}, 2, 30.0, is_program_over=False, hold_ms=5_000)
        ended.set()

    threading.Thread(target=run).start()
    while not ended.is_set():
        time.sleep(0.0003)
    assert len(reaped) <= starts // 3


def test_a_program_that_waits_for_its_children() -> None:
    """While a thread is in an `os.wait()` nothing is started; it gets the child that it waits for."""
    with subprocess.Popen(["/bin/sleep", "60"]) as worker:
        got: list[int] = []
        waiting = threading.Thread(target=lambda: got.append(os.wait()[0]))
        waiting.start()
        until(awaits_any_child)
        with pytest.raises(ChildrenAwaitedError):
            run_detached(["/bin/true"], {}, 2, 30.0, is_program_over=False)
        worker.kill()
        waiting.join()
        assert got == [worker.pid]
        worker.returncode = 0
    assert not awaits_any_child()
    run_detached(["/bin/true"], {}, 2, 30.0, is_program_over=False)


def test_waiting_for_one_child_puts_nothing_off() -> None:
    """Most programs wait for a specific child, which does not concern us."""
    with subprocess.Popen(["/bin/sleep", "60"]) as worker:
        waiting = threading.Thread(target=worker.wait)
        waiting.start()
        # In `waitpid`, whose first argument is the child: a thread that has not come there proves nothing.
        syscall = Path(f"/proc/self/task/{waiting.native_id}/syscall")
        until(lambda: syscall.read_text().split()[1:2] == [hex(worker.pid)])
        assert not awaits_any_child()
        worker.kill()
        waiting.join()


def test_a_report_that_is_long(tmp_path: Path) -> None:
    """Megabytes of warnings neither block the agent's start nor stay in memory."""
    noise = "for _ in range(100_000): sys.stderr.write('noise, noise\\n')\n"
    assert spawn_agent(tmp_path, nothing, boot=ENDS_AT_ONCE.replace("from otel", noise + "from otel")) == ""
    assert boot_report.KEPT_BYTES < 100_000


def test_a_frozen_application_exports_by_itself(
    warm_python: WarmPython, base: Path, receiver: OtlpReceiver, tmp_path: Path
) -> None:
    """The executable is the application, which would train again: a thread exports, with one warning."""
    application, started = tmp_path / "app", tmp_path / "started"
    application.write_text(f"#!/bin/sh\ntouch {started}\nexec sleep 60\n")
    application.chmod(0o700)
    environ = {**environment(base, receiver), ORDINARY_END: "true"}
    [done] = warm_python.run(WORKERS / "frozen.py", [environ], tmp_path, [str(tmp_path / "store"), str(application)])
    assert (done.code, done.out.splitlines()[-1:]) == (0, ["trained"]), done.err  # gloo of torch 2.8 prints
    [warning] = [line for line in done.err.splitlines() if "otel_torchdist" in line or "agent" in line]
    assert f"{application} is an application with an embedded Python, so no agent can be started" in warning
    assert not started.exists()
    assert [span.name for span in receiver.spans()].count("all_reduce") == 3
