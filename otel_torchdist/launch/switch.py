"""Switches recording on and off in this process, for OpenTelemetry's instrumentor or by the environment.

If an agent exports, a rank does not import OpenTelemetry, which saves 1.4 MB.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from otel_torchdist import guard
from otel_torchdist.config import (
    ActionKind,
    CaptureKernel,
    Config,
    DeclaredFile,
    ReaderHome,
    declared_files,
    has_console,
)
from otel_torchdist.launch.first_group import C10D, when_first_group
from otel_torchdist.node.job.ancestry import directory_of_parent
from otel_torchdist.node.job.directory import TAKEN, base_directory, job_directory, job_key
from otel_torchdist.node.job.room import RankCleaning
from otel_torchdist.node.job.share import belongs_to_share
from otel_torchdist.node.off_switch import OffSwitch
from otel_torchdist.package import OLDEST_TORCH
from otel_torchdist.system.files.kept import make_room_for_descriptors

if TYPE_CHECKING:
    from pathlib import Path

    from otel_torchdist.agent.actions.perform import Callback
    from otel_torchdist.agent.launch.keeper import AgentKeeper
    from otel_torchdist.agent.thread import ReaderThread
    from otel_torchdist.capture.core.requests.preemption import PreemptionWatch
    from otel_torchdist.capture.parts.rescue import RescuePlan
    from otel_torchdist.capture.session import Capture
    from otel_torchdist.capture.tensors.choice import Observers
    from otel_torchdist.native.library import Library
    from otel_torchdist.telemetry.export.outputs import Outputs

_logger = logging.getLogger("otel_torchdist")
_HOOKS: Final = frozenset({"hooks", "before_operation", "after_operation"})
"""Arguments of `instrument` that pass hooks."""


class Switch:
    """The recording of this process, on or off.

    Attributes:
        is_on: Whether recording is turned on, even if no group exists yet or the SDK is disabled.
    """

    def __init__(self) -> None:
        self.is_on = False
        self._capture: Capture | None = None
        self._thread: ReaderThread | None = None
        self._keeper: AgentKeeper | None = None
        self._preemption: PreemptionWatch | None = None
        self._cancel: Callable[[], object] | None = None

    def turn_on(self, config: Config, outputs: Callable[[], Outputs], arguments: dict[str, Any]) -> None:
        """Start recording now if torch.distributed is loaded, else with the first process group.

        Args:
            config: The settings.
            outputs: Returns the outputs of an exporting thread in this process.
            arguments: The other arguments of `instrument`.
        """
        self.is_on = True
        if config.sdk_disabled:
            return
        start = functools.partial(self._start, config, outputs, arguments)
        if C10D in sys.modules and hasattr(sys.modules.get("torch"), "optim"):
            start()
        else:  # importing torch here would slow down every process that `opentelemetry-instrument` starts
            self._cancel = when_first_group(start)

    def _start(
        self,
        config: Config,
        outputs: Callable[[], Outputs],
        arguments: dict[str, Any],
    ) -> None:
        if not _has_gil():
            if _is_first_of_node():
                _logger.warning(
                    "otel_torchdist is off in this process: its tape needs the GIL, and this Python runs without one. "
                    "PYTHON_GIL=1 enables the GIL"
                )
            return
        off_switch = OffSwitch(config.off_file, config.tape_dir)
        found = off_switch.found()
        if found is not None:
            if _is_first_of_node():
                _logger.warning("otel_torchdist is off in this process until it ends, because %s exists", found)
            return
        with guard.guarded("switching on"):
            make_room_for_descriptors()  # runs while modules are imported
            from otel_torchdist.capture.upstream import core
            from otel_torchdist.capture.upstream.symbol import first_missing

            missing = first_missing(*core.REQUIRED)
            if missing is not None:
                missing.report()
                return
            from otel_torchdist.capture.core.run.description import SelfDescription
            from otel_torchdist.capture.session import Capture

            observers = _observers(config, arguments)
            has_exchange = config.exchange and config.reader is not ReaderHome.THREAD
            exchange_host = config.exchange_host if has_exchange else None
            cleaning = RankCleaning(config.keep_runs, config.keep_bytes, config.reader is ReaderHome.AGENT)
            capture = Capture(
                functools.partial(_directory, config, cleaning),
                config.tape_records,
                exchange_host,
                config.abort_hooks,
                _library(config.capture) if observers is None or observers.is_empty else None,
                observers,
                off_switch,
                config.overhead_budget,
            )
            description = SelfDescription(config.describe_launch, lambda: capture.cuda_device)
            capture.on_tape(description.begin)
            capture.on_beat(description.beat)
            match config.reader:
                case ReaderHome.THREAD:
                    from otel_torchdist.agent.thread import ReaderThread

                    on_stall: Callback | None = arguments.get("on_stall")
                    self._thread = ReaderThread(config, outputs, on_stall)
                    capture.on_tape(lambda recorder: self._follow(recorder.tape))
                case ReaderHome.AGENT:
                    from otel_torchdist.agent.launch.keeper import AgentKeeper

                    keeper = self._keeper = AgentKeeper(on_no_agent=cleaning.take_over)
                    capture.on_tape(lambda recorder: keeper.keep(recorder.tape.path.parent))
                    capture.on_beat(keeper.check)
                case ReaderHome.NONE:
                    pass
            if (plan := _rescue_plan(config)) is not None:
                from otel_torchdist.capture.parts.rescue import Rescuer

                capture.on_beat(Rescuer(plan, capture.current_recorder).beat)
            if config.preemption_signals:
                from otel_torchdist.capture.core.requests.preemption import PreemptionWatch

                self._preemption = PreemptionWatch(config.preemption_signals, capture.current_recorder)
                self._preemption.start()
                capture.on_end(self._preemption.stop)
            self._capture = capture
            capture.install()

    def _follow(self, tape: Any) -> None:
        if self._thread is not None:
            self._thread.follow(tape)

    def turn_off(self) -> None:
        """Stop recording and restore torch. Recorded data is exported first."""
        self.is_on = False
        cancel, self._cancel = self._cancel, None
        if cancel is not None:
            cancel()
        capture, self._capture = self._capture, None
        thread, self._thread = self._thread, None
        keeper, self._keeper = self._keeper, None
        preemption, self._preemption = self._preemption, None
        with guard.guarded("switching off"):
            if preemption is not None:
                preemption.stop()
            if capture is not None:
                capture.uninstall()
            if thread is not None:
                thread.stop()
            if keeper is not None:
                keeper.close()


SWITCH: Final = Switch()
"""The switch of this process."""


def with_reader_thread(config: Config) -> Config:
    """Return settings with a reader thread in place of an agent.

    Only this process has the program's providers, and its terminal.
    """
    return dataclasses.replace(config, reader=ReaderHome.THREAD) if config.reader is ReaderHome.AGENT else config


def _has_gil() -> bool:
    """Return whether the GIL is enabled. In a free-threaded build it may be disabled."""
    is_enabled: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    return is_enabled()


def _is_first_of_node() -> bool:
    """Return whether this rank reports what is the same for all ranks of its node."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def _directory(config: Config, cleaning: RankCleaning) -> Path:
    """Return the job directory for a new tape."""
    base = base_directory(config.tape_dir, config.tape_on_disk)
    if base != config.tape_dir:
        _logger.warning(TAKEN, config.tape_dir, base)
    with guard.guarded("clean-up"):
        cleaning.before_tape(base)
    with guard.guarded("the parent's job"):
        directory = directory_of_parent(base)
        if directory is not None:
            return directory
    return job_directory(base, job_key(os.environ, _ray_train_run_id()))


def _library(kernel: CaptureKernel) -> Library | None:
    """Return the native library, or None to record in Python."""
    if kernel is CaptureKernel.PYTHON:
        return None
    from otel_torchdist.native.library import chosen_library

    return chosen_library(kernel)


def _ray_train_run_id() -> str:
    if "ray" not in sys.modules:
        return ""
    from otel_torchdist.node.job.ray_names import find_ray_names

    return find_ray_names().train_run_id


def _observers(config: Config, arguments: dict[str, Any]) -> Observers | None:
    """Return the observers of tensors, or None. Without observers, their modules are not imported, to save memory."""
    if not (config.observes_tensors or arguments.keys() & _HOOKS):
        return None
    from otel_torchdist.capture.tensors.choice import chosen_observers

    return chosen_observers(config, arguments)


def _rescue_plan(config: Config) -> RescuePlan | None:
    """Return the settings of rescues, or None if rescues are off or no agent could request them."""
    target = next((action.target for action in config.on_stall if action.kind is ActionKind.RESCUE), "")
    if not target or config.reader is ReaderHome.THREAD:
        return None
    from otel_torchdist.capture.parts.rescue import RescuePlan

    return RescuePlan(target, config.rescue_timeout, config.dump_dir / "rescue")


def _outputs_from_environment(describes_launch: bool) -> Outputs:
    from otel_torchdist.capture.core.run.description import own_job
    from otel_torchdist.telemetry.export.outputs import outputs_from_environment

    return outputs_from_environment(job=own_job(describes_launch))


def switch_on_from_environment() -> None:
    """Switch on as configured by the environment. Called with the first process group. Never raises."""
    with guard.guarded("switching on"):
        files = declared_files(os.environ)
        config = Config.from_environment(files=files)
        if not config.switched_on or SWITCH.is_on or not _is_new_enough(sys.modules["torch"]):
            return
        if not belongs_to_share(config.share, os.environ):
            _logger.info("this job is not among the share of jobs that are recorded (%g)", config.share)
            return
        if exports_itself(os.environ, files) or not _can_start_an_agent(config):
            config = with_reader_thread(config)
        SWITCH.turn_on(config, functools.partial(_outputs_from_environment, config.describe_launch), {})


def _is_new_enough(torch: Any) -> bool:
    """Return whether this torch is supported. Log an error otherwise, as OpenTelemetry's instrumentors do."""
    if torch.__version__ >= OLDEST_TORCH:
        return True
    oldest = ".".join(map(str, OLDEST_TORCH))
    _logger.error('DependencyConflict: requested: "torch >= %s" but found: "torch %s"', oldest, torch.__version__)
    return False


def _can_start_an_agent(config: Config) -> bool:
    """Return whether an agent can run, if the settings require one. Warn otherwise."""
    if config.reader is not ReaderHome.AGENT:
        return True
    from otel_torchdist.agent.launch.interpreter import find_interpreter, why_no_interpreter

    if find_interpreter():
        return True
    _logger.warning(
        "%s, so no agent can be started: a thread of each rank exports instead, and each node of the job is judged "
        "on its own. OTEL_PYTHON_TORCHDIST_READER=thread does the same without this warning; with "
        "OTEL_PYTHON_TORCHDIST_READER=none you can start `otel-torchdist agent` on each node yourself",
        why_no_interpreter(),
    )
    return False


def exports_itself(environ: Mapping[str, str], files: Sequence[DeclaredFile]) -> bool:
    """Return whether each rank exports by itself, because an exporter writes to the terminal.

    Args:
        environ: The environment variables.
        files: The configuration files.
    """
    if any(map(has_console, files)):
        return True
    return any("console" in environ.get(f"OTEL_{signal}_EXPORTER", "") for signal in ("TRACES", "METRICS", "LOGS"))
