"""Switches instrumentation on and off through OpenTelemetry's usual interface.

    from otel_torchdist import TorchDistInstrumentor

    TorchDistInstrumentor().instrument()

Spans and metrics then go to the providers given (`tracer_provider`, `meter_provider`, `logger_provider`) or else to
the global ones. With `OTEL_PYTHON_TORCHDIST_ENABLED=true` and without code changes they go to the exporters that the
standard `OTEL_*` variables configure.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import sys
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor

from otel_torchdist import guard
from otel_torchdist.config import ActionKind, Config, ReaderHome
from otel_torchdist.first_group import C10D, when_first_group
from otel_torchdist.job.ancestry import directory_of_parent
from otel_torchdist.job.directory import base_directory, clean_up, job_directory, job_key
from otel_torchdist.package import _instruments  # pyright: ignore[reportPrivateUsage]  # OpenTelemetry's convention

if TYPE_CHECKING:
    from pathlib import Path

    from otel_torchdist.actions.perform import Callback
    from otel_torchdist.agent.launch.keeper import AgentKeeper
    from otel_torchdist.agent.thread import ReaderThread
    from otel_torchdist.capture.observers.choice import Observing
    from otel_torchdist.capture.requests.preemption import PreemptionWatch
    from otel_torchdist.capture.requests.rescue import RescuePlan
    from otel_torchdist.capture.session import Capture
    from otel_torchdist.telemetry.export.outputs import Outputs

_logger = logging.getLogger("otel_torchdist")
_HOOKS: Final = frozenset({"hooks", "before_operation", "after_operation"})
"""Arguments of `instrument`."""


class TorchDistInstrumentor(BaseInstrumentor):
    """OpenTelemetry's instrumentor for `torch.distributed`: a singleton, however often it is created."""

    _capture: Capture | None = None
    _thread: ReaderThread | None = None
    _keeper: AgentKeeper | None = None
    _preemption: PreemptionWatch | None = None
    _cancel: Callable[[], object] | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the packages that must be installed."""
        return _instruments

    def _instrument(self, **kwargs: Any) -> None:
        """Switch on, at once if torch.distributed is loaded, else with the first process group.

        Args:
            **kwargs: `tracer_provider`, `meter_provider`, `logger_provider`: where spans, metrics and stall events
                go, the global ones by default; `on_stall`: called with a `StalledRun`, once per stall, in one of the
                ranks, on a thread; `before_operation`, `after_operation`: called with an `OperationCall` around each
                operation of this rank; `hooks`: one or several `Hooks`, the same with a filter; `config`: a `Config`
                that is used as it is, in place of the environment's.
        """
        config = kwargs.pop("config", None) or _in_this_process(Config.from_environment())
        if config.sdk_disabled:
            return
        outputs = kwargs.pop("outputs", None) or functools.partial(_outputs_of_providers, kwargs)
        begin = functools.partial(self._begin, config, outputs, kwargs)
        if C10D in sys.modules and hasattr(sys.modules.get("torch"), "optim"):
            begin()
        else:  # importing torch here would slow down every process that `opentelemetry-instrument` starts
            self._cancel = when_first_group(begin)

    def _begin(
        self,
        config: Config,
        outputs: Callable[[], Outputs],
        given: dict[str, Any],
    ) -> None:
        if not _has_gil():
            _logger.warning("otel_torchdist is off: its tape needs an interpreter with a GIL")
            return
        with guard.guarded("switching on"):
            from otel_torchdist.capture.description import SelfDescription
            from otel_torchdist.capture.session import Capture
            from otel_torchdist.native.library import chosen_library

            observing = _observing(config, given)
            speaks = config.exchange and config.reader is not ReaderHome.THREAD
            exchange_host = config.exchange_host if speaks else None
            capture = Capture(
                functools.partial(_directory, config),
                config.tape_records,
                exchange_host,
                config.abort_hooks,
                chosen_library(config.capture) if observing is None or observing.is_none else None,
                observing,
            )
            description = SelfDescription(config.describe_launch, lambda: capture.cuda_device)
            capture.on_tape(description.begin)
            capture.on_beat(description.beat)
            if config.reader is ReaderHome.THREAD:
                from otel_torchdist.agent.thread import ReaderThread

                on_stall: Callback | None = given.get("on_stall")
                self._thread = ReaderThread(config, outputs, on_stall)
                capture.on_tape(lambda recorder: self._read(recorder.tape))
            elif config.reader is ReaderHome.AGENT:
                from otel_torchdist.agent.launch.keeper import AgentKeeper

                keeper = self._keeper = AgentKeeper()
                capture.on_tape(lambda recorder: keeper.keep(recorder.tape.path.parent))
                capture.on_beat(keeper.check)
            if (plan := _rescue_plan(config)) is not None:
                from otel_torchdist.capture.requests.rescue import Rescuer

                capture.on_beat(Rescuer(plan, capture.current_recorder).beat)
            if config.preemption_signals:
                from otel_torchdist.capture.requests.preemption import PreemptionWatch

                self._preemption = PreemptionWatch(config.preemption_signals, capture.current_recorder)
                self._preemption.start()
            self._capture = capture
            capture.install()

    def _read(self, tape: Any) -> None:
        if self._thread is not None:
            self._thread.follow(tape)

    def _uninstrument(self, **kwargs: Any) -> None:
        """Switch off and restore torch; what has been recorded is exported first."""
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


def _in_this_process(config: Config) -> Config:
    """Return the settings for outputs that only this process has: the program's providers, or its terminal."""
    return dataclasses.replace(config, reader=ReaderHome.THREAD) if config.reader is ReaderHome.AGENT else config


def _has_gil() -> bool:
    """Whether the GIL is enabled, which may or may not be so in a free-threaded build."""
    is_enabled: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    return is_enabled()


def _directory(config: Config) -> Path:
    """Return the job directory for a new tape; first removes leftovers of ended runs beyond the limits."""
    base = base_directory(config.tape_dir, config.tape_on_disk)
    with guard.guarded("clean-up"):
        clean_up(base, config.keep_runs, config.keep_bytes)
    with guard.guarded("the parent's job"):
        directory = directory_of_parent(base)
        if directory is not None:
            return directory
    return job_directory(base, job_key(os.environ))


def _outputs_of_providers(providers: dict[str, Any]) -> Outputs:
    from otel_torchdist.telemetry.export.outputs import outputs_of_providers

    return outputs_of_providers(
        tracer_provider=providers.get("tracer_provider"),
        meter_provider=providers.get("meter_provider"),
        logger_provider=providers.get("logger_provider"),
    )


def _observing(config: Config, given: dict[str, Any]) -> Observing | None:
    """What looks at tensors; nothing of it is imported where nothing does, to save memory."""
    if not (config.observes_tensors or given.keys() & _HOOKS):
        return None
    from otel_torchdist.capture.observers.choice import chosen_observers

    return chosen_observers(config, given)


def _rescue_plan(config: Config) -> RescuePlan | None:
    """How ranks are rescued; None if they are not, or no agent could ask them to."""
    target = next((action.target for action in config.on_stall if action.kind is ActionKind.RESCUE), "")
    if not target or config.reader is ReaderHome.THREAD:
        return None
    from otel_torchdist.capture.requests.rescue import RescuePlan

    return RescuePlan(target, config.rescue_timeout, config.dump_dir / "rescue")


def _outputs_from_environment(describes_launch: bool) -> Outputs:
    from otel_torchdist.capture.description import own_job
    from otel_torchdist.telemetry.export.outputs import outputs_from_environment

    return outputs_from_environment(job=own_job(describes_launch))


def switch_on_from_environment() -> None:
    """Switch on as configured in the environment; called with the first process group. Never raises."""
    with guard.guarded("switching on"):
        config = Config.from_environment()
        instrumentor = TorchDistInstrumentor()
        if not config.switched_on or instrumentor.is_instrumented_by_opentelemetry:
            return
        if _prints(os.environ) or not _can_start_an_agent(config):
            config = _in_this_process(config)
        outputs = functools.partial(_outputs_from_environment, config.describe_launch)
        instrumentor.instrument(config=config, outputs=outputs)


def _can_start_an_agent(config: Config) -> bool:
    """Whether an agent could run; if one is configured and cannot, a warning states what happens instead."""
    if config.reader is not ReaderHome.AGENT:
        return True
    from otel_torchdist.agent.launch.interpreter import find_interpreter, why_none

    if find_interpreter():
        return True
    _logger.warning(
        "%s, so no agent can be started: a thread of each rank exports instead, and each node of the job is judged "
        "on its own. OTEL_PYTHON_TORCHDIST_READER=thread does the same without this warning; with "
        "OTEL_PYTHON_TORCHDIST_READER=none you can start `otel-torchdist agent` on each node yourself",
        why_none(),
    )
    return False


def _prints(environ: Mapping[str, str]) -> bool:
    """Whether an exporter writes to the terminal."""
    return any("console" in environ.get(f"OTEL_{signal}_EXPORTER", "") for signal in ("TRACES", "METRICS", "LOGS"))
