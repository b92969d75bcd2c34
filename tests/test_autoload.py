"""The ``torch.backends`` entry point: what it costs when off, and when it switches on."""

import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from otel_torchdist import autoload
from otel_torchdist.config.declared_file import NODE_FILE
from otel_torchdist.environment_variables import (
    OTEL_CONFIG_FILE,
    OTEL_PYTHON_TORCHDIST_CONFIG,
    OTEL_PYTHON_TORCHDIST_ENABLED,
)
from otel_torchdist.package import INSTRUMENTATION_NAME

pytestmark = pytest.mark.process

dist = pytest.importorskip("torch.distributed")
c10d = dist.distributed_c10d

LIST_OURS = "import sys; print(*sorted(name for name in sys.modules if name.startswith('otel_torchdist')))"
ORIGINALS = {name: getattr(c10d, name) for name in ("_new_process_group_helper", "_update_default_pg", "rendezvous")}

WAITING = (
    "otel_torchdist otel_torchdist.autoload otel_torchdist.capture otel_torchdist.capture.upstream "
    "otel_torchdist.capture.upstream.core otel_torchdist.capture.upstream.launch otel_torchdist.capture.upstream.rpc "
    "otel_torchdist.capture.upstream.symbol otel_torchdist.environment_variables otel_torchdist.guard "
    "otel_torchdist.launch otel_torchdist.launch.failed_launch otel_torchdist.launch.first_group "
    "otel_torchdist.system otel_torchdist.system.when_imported"
)
"""Modules loaded while no process group has been created: a few small ones that import only the standard library."""


class Instrumentor(types.ModuleType):
    """Replaces ``otel_torchdist.launch.switch``: counts the calls and can act like the real one."""

    def __init__(self) -> None:
        super().__init__("otel_torchdist.launch.switch")
        self.calls = 0
        self.saw_a_group = False
        self.action: Callable[[], None] = lambda: None

    def switch_on_from_environment(self) -> None:
        """Note that we were switched on, and whether a group was there already."""
        self.calls += 1
        self.saw_a_group = dist.is_initialized()
        self.action()


@pytest.fixture
def originals(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put torch's own creators of groups back, and destroy the group that is left."""
    for name, original in ORIGINALS.items():
        monkeypatch.setattr(c10d, name, original)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def instrumentor(originals: None, monkeypatch: pytest.MonkeyPatch) -> Instrumentor:
    """Switch on by the environment, in this process, with an instrumentor that only counts."""
    stand_in = Instrumentor()
    monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)
    monkeypatch.setenv(OTEL_PYTHON_TORCHDIST_ENABLED, "true")
    autoload.autoload()
    return stand_in


def create_group() -> None:
    """Create a default group of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


class Output(NamedTuple):
    """The output of a program, as lines."""

    out: list[str]
    err: list[str]


def python(code: str, **environ: str) -> Output:
    """Run a program that imports torch as a user's would, and leave out what gloo prints by itself."""
    command, variables = [sys.executable, "-c", code], {**os.environ, **environ}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    out = [line for line in done.stdout.splitlines() if not line.startswith("[Gloo]")]
    return Output(out, done.stderr.splitlines())


def test_entry_points() -> None:
    """The installed distribution declares both entry points, the second under the name that users can disable."""
    [ours] = entry_points(group="torch.backends", name="otel_torchdist")
    assert ours.load() is autoload.autoload
    [instrumentor] = entry_points(group="opentelemetry_instrumentor", name=INSTRUMENTATION_NAME)
    assert instrumentor.value == "otel_torchdist.instrumentor:TorchDistInstrumentor"


def test_off_loads_nothing() -> None:
    """Without the switch, ``import torch`` loads nothing of ours but the entry point, and changes nothing."""
    untouched = "assert not hasattr(c10d._new_process_group_helper, '__wrapped__')"
    done = python(f"import torch; {LIST_OURS}; import torch.distributed.distributed_c10d as c10d; {untouched}")
    assert done == Output(out=["otel_torchdist otel_torchdist.autoload"], err=[])


@pytest.mark.parametrize("text", ["", " ", "false", "FALSE"])
def test_off_values(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty switch and ``false`` in any case are off: torch's creators of groups stay in place."""
    monkeypatch.setenv(OTEL_PYTHON_TORCHDIST_ENABLED, text)
    autoload.autoload()
    assert {name: getattr(c10d, name) for name in ORIGINALS} == ORIGINALS


@pytest.mark.thorough
def test_bad_value_is_silent_without_a_group() -> None:
    """With a bad value in the switch a process without a group loads and logs nothing, nor do its workers."""
    loader = "import torch, torch.utils.data as d; list(d.DataLoader([1, 2], num_workers=1))"
    done = python(f"{loader}; {LIST_OURS}", OTEL_PYTHON_TORCHDIST_ENABLED="1")
    assert done == Output(out=[WAITING], err=[])


@pytest.mark.parametrize("variable", ["OTEL_CONFIG_FILE", "OTEL_PYTHON_TORCHDIST_CONFIG"])
def test_file_is_not_read_without_a_group(variable: str, tmp_path: Path) -> None:
    """With a file that may switch on, a process without a group loads the same few modules, and does not read it."""
    (tmp_path / "config.yaml").write_text("no: [configuration")
    done = python(f"import torch; {LIST_OURS}", **{variable: str(tmp_path / "config.yaml")})
    assert done == Output(out=[WAITING], err=[])


@pytest.mark.parametrize(
    "environ",
    [
        {"OTEL_PYTHON_TORCHDIST_CONFIG": "/none/config.yaml"},
        {"OTEL_PYTHON_TORCHDIST_CONFIG": __file__, OTEL_PYTHON_TORCHDIST_ENABLED: "false"},
        {"OTEL_CONFIG_FILE": __file__, OTEL_PYTHON_TORCHDIST_ENABLED: "False"},
    ],
)
def test_no_file_or_off(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a file, and where the job's environment says off, torch's creators of groups stay in place."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    autoload.autoload()
    assert {name: getattr(c10d, name) for name in ORIGINALS} == ORIGINALS


@pytest.mark.usefixtures("originals")
def test_file_of_the_node_switches_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a file, the first group of a process asks for the settings."""
    stand_in = Instrumentor()
    monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)
    (tmp_path / "config.yaml").touch()
    monkeypatch.setenv("OTEL_PYTHON_TORCHDIST_CONFIG", str(tmp_path / "config.yaml"))
    autoload.autoload()
    create_group()
    assert (stand_in.calls, stand_in.saw_a_group) == (1, False)


def test_paths_of_files() -> None:
    """The entry point, which imports nothing, has the names and the default path of the settings."""
    assert (autoload._JOB_FILE, autoload._NODE_FILE, autoload._DEFAULT_NODE_FILE) == (
        OTEL_CONFIG_FILE,
        OTEL_PYTHON_TORCHDIST_CONFIG,
        NODE_FILE,
    )


@pytest.mark.usefixtures("originals")
def test_bad_value_is_reported_by_a_rank(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A rank with a bad value in the switch logs that once, when it creates its first group, and stays off."""
    monkeypatch.setenv(OTEL_PYTHON_TORCHDIST_ENABLED, "1")
    autoload.autoload()
    for _ in range(2):
        create_group()
        dist.destroy_process_group()
    messages = [record.getMessage() for record in caplog.records if record.name == "otel_torchdist"]
    assert messages == ["OTEL_PYTHON_TORCHDIST_ENABLED='1' is not true or false: using false"]
    assert {name: getattr(c10d, name) for name in ORIGINALS} == ORIGINALS


@pytest.mark.thorough
def test_torch_without_entry_points() -> None:
    """``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` keeps us out altogether."""
    done = python(f"import torch; {LIST_OURS}", OTEL_PYTHON_TORCHDIST_ENABLED="true", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done == Output(out=[""], err=[])


@pytest.mark.thorough
def test_torchrun_itself_is_untouched() -> None:
    """Under torchrun the worker switches on with its group; torchrun itself loads only what follows its nodes."""
    worker = (
        "import sys, types, torch.distributed as dist;"
        "m = types.ModuleType('otel_torchdist.launch.switch');"
        "m.switch_on_from_environment = lambda: print('worker is on', flush=True);"
        "sys.modules[m.__name__] = m;"
        "dist.init_process_group('gloo'); dist.destroy_process_group()"
    )
    arguments = ["--standalone", "--nproc-per-node=1", "--no-python", sys.executable, "-c", worker]
    done = python(
        f"from torch.distributed.run import main; main({arguments!r}); {LIST_OURS}",
        OTEL_PYTHON_TORCHDIST_ENABLED="true",
    )
    loaded = " ".join(sorted([*WAITING.split(), "otel_torchdist.launch.node_rendezvous"]))
    assert done == Output(out=["worker is on", loaded], err=[])


def test_first_group_switches_on(instrumentor: Instrumentor) -> None:
    """The first group switches on just before it is created; later ones find torch unchanged."""
    assert instrumentor.calls == 0
    create_group()
    assert (instrumentor.calls, instrumentor.saw_a_group) == (1, False)
    assert {name: getattr(c10d, name) for name in ORIGINALS} == ORIGINALS
    dist.new_group([0])
    dist.destroy_process_group()
    create_group()
    assert instrumentor.calls == 1


def test_device_mesh_switches_on(instrumentor: Instrumentor, monkeypatch: pytest.MonkeyPatch) -> None:
    """``init_device_mesh`` alone, which bypasses ``dist.init_process_group``, switches on too."""
    environ = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    mesh = dist.init_device_mesh("cpu", (1,))
    assert mesh.size() == 1
    assert (instrumentor.calls, instrumentor.saw_a_group) == (1, False)


def test_ready_made_group_switches_on(instrumentor: Instrumentor) -> None:
    """A library that creates the default group itself and only sets it switches on as well."""
    group = dist.ProcessGroup(dist.HashStore(), 0, 1)
    c10d._update_default_pg(group)
    try:
        assert (instrumentor.calls, instrumentor.saw_a_group) == (1, False)
    finally:
        c10d._update_default_pg(None)


def test_lone_backend_switches_on(instrumentor: Instrumentor) -> None:
    """A program that makes a backend and no group is a rank too."""
    dist.ProcessGroupGloo(dist.HashStore(), 0, 1, timedelta(seconds=10))
    assert (instrumentor.calls, instrumentor.saw_a_group) == (1, False)


def test_capture_sees_the_first_group(instrumentor: Instrumentor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The creator that capture puts in place while we switch on is the one that creates this very group."""
    descriptions: list[object] = []

    def capture(*args: Any, **kwargs: Any) -> Any:
        descriptions.append(kwargs["group_desc"])
        return ORIGINALS["_new_process_group_helper"](*args, **kwargs)

    instrumentor.action = lambda: monkeypatch.setattr(c10d, "_new_process_group_helper", capture)
    create_group()
    assert descriptions == ["default_pg"]


def test_foreign_wrapper_is_respected(instrumentor: Instrumentor, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third-party wrapper around our stand-in stays in place and is called once for each group."""
    ours, calls = c10d._new_process_group_helper, 0

    def foreign(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return ours(*args, **kwargs)

    monkeypatch.setattr(c10d, "_new_process_group_helper", foreign)
    create_group()
    dist.new_group([0])
    assert (instrumentor.calls, calls) == (1, 2)
    assert c10d._new_process_group_helper is foreign


def test_old_reference_still_creates(instrumentor: Instrumentor) -> None:
    """Code that imported the stand-in by name can still call it after it has been removed."""
    held = c10d._update_default_pg
    create_group()
    group = dist.group.WORLD
    held(group)
    assert dist.group.WORLD is group
    assert instrumentor.calls == 1


def test_users_error_passes(instrumentor: Instrumentor) -> None:
    """A mistake in creating the first group is raised to the user as torch raises it."""
    with pytest.raises(TypeError, match="timeout"):
        c10d._new_process_group_helper(1, 0, [], "gloo", dist.HashStore(), group_name="", timeout="soon")
    create_group()
    assert instrumentor.calls == 1


@pytest.mark.usefixtures("contained")
def test_failure_to_switch_on_is_contained(
    instrumentor: Instrumentor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If switching on fails, as with a broken installation, the group is still created and the log gives the reason."""
    monkeypatch.setitem(sys.modules, "otel_torchdist.launch.switch", None)
    create_group()
    assert dist.get_world_size() == 1
    assert "import of otel_torchdist.launch.switch halted" in caplog.text


@pytest.mark.usefixtures("contained")
def test_unknown_torch_is_contained(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """With a torch whose creators have other names ``import torch`` continues, and the log gives the reason."""
    monkeypatch.setenv(OTEL_PYTHON_TORCHDIST_ENABLED, "true")
    monkeypatch.setitem(sys.modules, c10d.__name__, types.ModuleType(c10d.__name__))
    autoload.autoload()
    assert "_new_process_group_helper" in caplog.text


def test_forked_rank_switches_on() -> None:
    """A rank that a notebook launcher forks from a process with torch switches on; the parent does not."""
    code = """
import os, sys, types
import torch.distributed as dist
instrumentor = types.ModuleType("otel_torchdist.launch.switch")
instrumentor.switch_on_from_environment = lambda: print("parent" if os.getpid() == parent else "child")
sys.modules[instrumentor.__name__] = instrumentor
parent = os.getpid()
if os.fork() == 0:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()
    sys.exit(0)
assert os.wait()[1] == 0
"""
    assert python(code, OTEL_PYTHON_TORCHDIST_ENABLED="true").out == ["child"]


@pytest.mark.thorough
def test_late_import_of_c10d() -> None:
    """Where ``import torch`` does not import torch.distributed, we wait for it silently."""
    code = """
import sys, types
from otel_torchdist.autoload import autoload
autoload()
instrumentor = types.ModuleType("otel_torchdist.launch.switch")
instrumentor.switch_on_from_environment = lambda: print("on")
sys.modules[instrumentor.__name__] = instrumentor
import torch.distributed as dist
print("imported")
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.destroy_process_group()
"""
    done = python(code, OTEL_PYTHON_TORCHDIST_ENABLED="true", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done == Output(out=["imported", "on"], err=[])
