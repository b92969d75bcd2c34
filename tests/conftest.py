"""What every test starts from: none of the developer's OpenTelemetry settings, and our own errors raised."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Final

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from deploy.native.servers import cache_folder
from otel_torchdist.environment_variables import (
    OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL,
    OTEL_PYTHON_TORCHDIST_TAPE_DIR,
)
from otel_torchdist.system.this_process.commands import freezing_imports
from tests.support.browser import Browser, running_browser
from tests.support.launch.warm_python import WarmPython
from tests.support.tapes.directories import memory_directory

WITH_PROCESSES: Final = (
    *("tests/agent/", "tests/benchmarks/", "tests/capture/", "tests/cli/", "tests/deploy/", "tests/figures/"),
    *("tests/gpu/", "tests/installation/", "tests/jobs/", "tests/native/", "tests/node/processes/", "tests/servers/"),
    "tests/launchers/",
    *("tests/release/test_compatibility", "tests/release/test_release", "tests/wheels/"),
)
WITH_SERVERS: Final = "tests/servers/"
TOGETHER: Final = (
    *("tests/benchmarks", "tests/figures", "tests/jobs/routes", "tests/jobs/side_effects", "tests/jobs/thirdparty"),
    *("tests/launchers/ray", "tests/launchers/slurm", "tests/servers"),
)
"""Folders whose fixtures serve the whole folder, and take long."""
WAITING: Final = (
    *("tests/agent", "tests/cli", "tests/deploy", "tests/jobs/faults/test_faults", "tests/jobs/faults/ends/test_kills"),
    *("tests/jobs/faults/test_nodes", "tests/jobs/faults/test_silent", "tests/jobs/faults/test_stories"),
    "tests/launchers/",
    *("tests/jobs/faults/test_tolerance", "tests/jobs/torchrun", "tests/node/processes", "tests/servers"),
)
"""What waits most of the time, for processes and their timeouts."""
ALONE: Final = ("tests/jobs/faults/test_spinning", "tests/servers/test_up")
"""What promises a time that its own processes nearly fill: it runs when no other test does."""
TIMEOUT: Final = pytest.StashKey[Any]()
"""Where a test keeps how its timer is set."""
TEST_REPEATED: Final = "TEST_REPEATED"
"""Environment variable: the tests that fail are repeated."""
HAS_CRASHED: Final = pytest.StashKey[bool]()
"""Whether a process that runs tests has crashed."""
WARM_PYTHON: Final = "TEST_WARM_PYTHON"
"""Environment variable: the folder of the interpreter that all processes share that run tests."""

TEST_RECORD: Final = "TEST_RECORD"
"""Environment variable: the file in which the result of a complete run is kept."""


def pytest_configure(config: pytest.Config) -> None:
    """Clean the environment before anything is collected; the processes that tests start inherit it."""
    is_worker = hasattr(config, "workerinput")
    for name in [name for name in os.environ if name.startswith("OTEL_") or name == "TRACEPARENT"]:
        if not (is_worker and name == OTEL_PYTHON_TORCHDIST_TAPE_DIR):  # of the process that has started this one
            del os.environ[name]
    # A shell's background job ignores it, and so would every process that tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # How long an example takes says more about the machine's load than about our code.
    hypothesis.settings.register_profile("ours", deadline=None, max_examples=50)
    hypothesis.settings.load_profile("ours")
    os.environ[OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL] = "true"
    # As torchrun sets it for its ranks: where they have more threads than cores, these wait for each other by spinning.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Ranks find a loopback device for gloo without a name service.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # Torch 2.8 waits minutes at its end for processes that compile.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    at_end = contextlib.ExitStack()
    config.add_cleanup(at_end.close)
    if not is_worker:  # the processes that run tests inherit it
        os.environ.update(at_end.enter_context(_empty_homes()))
        # Where a test says nothing else: other jobs of this user have their tapes in the usual directory.
        os.environ[OTEL_PYTHON_TORCHDIST_TAPE_DIR] = str(at_end.enter_context(memory_directory()))
        if os.environ.get(TEST_RECORD):
            from tests.support.suite_record import SuiteRecorder  # with what makes the reference pages

            config.pluginmanager.register(SuiteRecorder(Path(os.environ[TEST_RECORD])))
    if config.getoption("numprocesses", None) and WARM_PYTHON not in os.environ:
        os.environ[WARM_PYTHON] = str(at_end.enter_context(memory_directory()))


@contextlib.contextmanager
def _empty_homes() -> Iterator[dict[str, str]]:
    """The variables that name a user's caches and configuration, all empty but for the servers of `make stack`."""
    with tempfile.TemporaryDirectory(prefix="otel-torchdist-cache-") as folder:
        cache, configuration, compiled = (Path(folder) / name for name in ("cache", "config", "torchinductor_tests"))
        stack, ours = cache_folder() / "stack", cache / "otel-torchdist"
        for empty in (configuration, compiled, ours):
            empty.mkdir(parents=True)
        if stack.is_dir():
            (ours / "stack").symlink_to(stack)
        # Inductor's is in /tmp otherwise, and shared by all programs of the user.
        names = {"XDG_CACHE_HOME": cache, "XDG_CONFIG_HOME": configuration, "TORCHINDUCTOR_CACHE_DIR": compiled}
        yield {name: str(path) for name, path in names.items()}


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    """Keep the settings with which pytest-timeout starts its timer."""
    item.stash[TIMEOUT] = settings


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Start that timer again: it is stopped when a test fails, and a teardown could then hang for ever."""
    if TIMEOUT in item.stash:
        item.config.hook.pytest_timeout_set_timer(item=item, settings=item.stash[TIMEOUT])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what is collected out of the garbage collector's sight: each process would look at all of it often."""
    with freezing_imports():
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of folders that start jobs or servers, and run these first, for they take longest."""
    for item in items:
        if item.nodeid.startswith(WITH_PROCESSES):
            item.add_marker("process")
        if item.nodeid.startswith(WITH_SERVERS):
            item.add_marker("servers")
    items.sort(
        key=lambda item: (item.get_closest_marker("servers") is None, item.get_closest_marker("process") is None)
    )


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Forget the failures of a run that may be incomplete, for `.ci/run`: it finds none to repeat, and fails."""
    is_incomplete = exitstatus > pytest.ExitCode.TESTS_FAILED or session.config.stash.get(HAS_CRASHED, False)
    cache = getattr(session.config, "cache", None)
    if TEST_REPEATED in os.environ and cache is not None and is_incomplete:
        cache.set("cache/lastfailed", {})


def pytest_handlecrashitem(sched: LoadScopeScheduling) -> None:
    """Note that a process that runs tests has crashed: after some of these, xdist leaves out the rest of the tests."""
    sched.config.stash[HAS_CRASHED] = True


@pytest.fixture
def memory() -> Iterator[Path]:
    """An empty directory on tmpfs, with mode 0700."""
    with memory_directory() as path:
        yield path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for the tests of a module."""
    with running_browser() as browser:
        yield browser


@pytest.fixture
def contained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behave as in production: an error of ours is logged, the first of its place with the traceback."""
    monkeypatch.delenv(OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL)


@pytest.fixture(autouse=True)
def level_of_log() -> Iterator[None]:
    """Leave our logger's level as it was: an agent that runs in the test's process sets it, as in its own."""
    logger = logging.getLogger("otel_torchdist")
    before = logger.level
    yield
    logger.setLevel(before)


@pytest.fixture(scope="session")
def warm_python() -> Iterator[WarmPython]:
    """The interpreter from which jobs are forked: it has imported torch."""
    folder = os.environ.get(WARM_PYTHON)
    python = WarmPython(shared_in=Path(folder) if folder else None)
    yield python
    python.close()


class _WaitingBesideBusy(LoadScopeScheduling):
    """Has one process run the tests that keep a core busy, and the others those that wait most of the time.

    So many of them can wait at the same time, and what they measure is not the load of the machine. The tests of a file
    run in one process, and so do those of a folder that shares its fixtures.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        folder = file.rpartition("/")[0]
        return folder if folder in TOGETHER and not file.startswith(ALONE) else file

    def _assign_work_unit(self, node: WorkerController) -> None:
        takes_busy = node is next(iter(self.assigned_work))
        beside = [scope for scope in self.workqueue if not scope.startswith(ALONE)]
        fitting = [scope for scope in beside if scope.startswith(WAITING) is not takes_busy]
        for scope in (fitting or beside)[:1]:
            self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Note that a test has run, which the last process may have waited for."""
        super().mark_test_complete(node, item_index, duration)
        if self._is_rest_alone():
            for other in self.nodes:
                self._reschedule(other)

    def _reschedule(self, node: WorkerController) -> None:
        others = [one for one in self.nodes if one is not node and self._is_rest_alone() and self._runs_tests(one)]
        if node.shutting_down or not others:
            super()._reschedule(node)
        elif not all(one.shutting_down for one in others):
            node.shutdown()  # it still runs what it has been given, and the last process runs the rest

    def _runs_tests(self, node: WorkerController) -> bool:
        return self._pending_of(self.assigned_work[node]) > 0

    def _is_rest_alone(self) -> bool:
        return bool(self.workqueue) and all(scope.startswith(ALONE) for scope in self.workqueue)


@pytest.hookimpl(optionalhook=True)  # `-p no:xdist` is allowed
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Where several processes run tests: what each is given."""
    return _WaitingBesideBusy(config, log)
