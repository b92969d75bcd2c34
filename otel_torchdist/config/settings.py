"""The settings, read once from the environment and from configuration files.

``Config`` is the table: for each setting its variable, its accepted values, and its default as written in the
environment. Their meaning is documented in ``environment_variables``. Neither torch nor OpenTelemetry is imported
here, because ``capture`` needs the settings too.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from otel_torchdist import environment_variables as env
from otel_torchdist.config.accepted import (
    ALL_RANKS,
    Accepted,
    CaptureKernel,
    NumericsMode,
    PageAccess,
    Parameter,
    ReaderHome,
    absolute_path,
    integer,
    list_of_names,
    list_of_patterns,
    list_of_ranks,
    list_of_signals,
    list_of_targets,
    milliseconds,
    number_up_to,
    one_of,
    optional,
    trace_url_template,
    web_address,
)
from otel_torchdist.config.actions import Action, parse_actions, parse_finding_actions
from otel_torchdist.config.declared_file import NODE_FILE, DeclaredFile, declared_files
from otel_torchdist.config.sources import SettingSource, file_source
from otel_torchdist.package import INSTRUMENTATION_NAME

_PARAMETER = "parameter"
_NOT_IN_FILES = ("node_file", "sdk_disabled", "disabled_instrumentations")
"""Fields without a key in configuration files. OpenTelemetry has its own key for the second: `disabled`."""

_logger = logging.getLogger("otel_torchdist")

T = TypeVar("T")
E = TypeVar("E", bound=Enum)

_BOOLEAN = one_of({"true": True, "false": False})
_TEXT = Accepted("text", str)
_ACTIONS = Accepted(
    "a list of log, dump, rescue:module:function (before abort), abort, callback:module:function and command:…",
    parse_actions,
)
_FINDING_ACTIONS = Accepted("a list of log, dump, abort, callback:module:function and command:…", parse_finding_actions)


def _setting(variable: str, accepted: Accepted[T], default: str) -> T:
    """Declare a field of ``Config``; the type checker sees the type of its value."""
    parameter = Parameter(variable, accepted, default)
    return dataclasses.field(default_factory=parameter.default_value, metadata={_PARAMETER: parameter})


@dataclass(frozen=True, kw_only=True)
class Config:
    """The settings of one process; immutable.

    `Config.from_environment()` reads them from the environment variables, and from configuration files where a variable
    is not set. `Config()` has the defaults, and keyword arguments replace single settings. Durations are in seconds
    here and in milliseconds in the environment. The variable of a field is `OTEL_PYTHON_TORCHDIST_` and its name in
    capital letters, unless another one is given.

    `TorchDistInstrumentor().instrument(config=...)` uses a configuration unchanged. With `reader` at its default it
    starts an agent, which uses neither the program's providers nor its `on_stall`; `ReaderHome.THREAD` uses both.

    Attributes:
        enabled: Whether the environment or a file switches the instrumentation on; see `switched_on`.
        share: Share of jobs that are recorded. 1 if a variable or file above the source of the share switches on.
        node_file: The node's configuration file; `OTEL_PYTHON_TORCHDIST_CONFIG`.
        reader: Reader of the tapes: an agent (the default), a thread of each rank, or none.
        capture: Recorder of the calls: the native library if there is one (the default), or Python.
        agent_linger: Seconds for which the agent keeps running after the last rank.
        stall_timeout: Age in seconds at which an open operation is stalled.
        idle_after: Number of stall timeouts without any call after which a job is reported as idle; 0 for never.
        hooks: Functions or `Hooks`, as `module:name`, called around operations.
        numerics: Operations whose tensors are checked.
        numerics_every: Every N-th operation is sampled. Large messages are sampled less often.
        numerics_ranks: Ranks that check their tensors; empty for all.
        compare_parameters: Parameters of DDP's replicas are compared before every N-th step; 0 for never.
        synchronize: Whether devices are synchronized around collectives, for debugging.
        abort_hooks: Whether backends report the operations that they abort.
        stall_ignore: Patterns (`*`, `?`) of operations never reported as stalled: names, groups, call sites.
        compare_calls: Whether calls are compared between ranks while nothing stalls.
        critical_path: Whether an agent analyzes the critical path of the newest steps from time to time.
        announce: Whether stalls and crashes are announced on the job's standard error.
        on_stall: Actions on a stall, in addition to a warning in the log.
        on_finding: Actions on a finding other than a stall, in addition to a warning in the log.
        on_machine: Actions on a machine that should be drained, or left out of the job's next start.
        machine_incidents: Directory in which incidents of machines are counted; None to count none.
        machine_incident_days: Age in days after which they no longer count.
        on_stall_grace: Age in seconds that a verdict must reach before these actions run.
        rescue_timeout: Upper bound in seconds on the function of `rescue`.
        preemption_signals: Signals that announce the end of the job.
        dump_dir: Directory for the bundles of evidence of the action `dump`.
        exchange: Whether agents of different nodes exchange data.
        exchange_host: Address on which an agent listens for its peers; '' to determine it automatically.
        span_budget: Spans per second and rank.
        tape_dir: The base directory of the tapes.
        tape_on_disk: Whether that directory may be outside tmpfs.
        tape_records: Number of records in a tape, of 128 bytes each.
        machine: Whether the agent reads the machine's state: memory, pressure, links, processes, GPUs.
        describe_launch: Whether command line and commit are exported.
        off_file: The file that switches recording off on this node, in running jobs too, while it exists.
        overhead_budget: Per cent of a step that recording may take before a rank records less; 0 for no limit.
        keep_runs: Number of job directories of ended runs that are kept.
        keep_bytes: Upper bound in bytes on their total size.
        archive: Directory into which whole runs are archived; None for no archive.
        archive_bytes: Upper bound in bytes on a run's archive on each node.
        bundles: Directory for bundles of evidence, which outlives the job; None for no bundles.
        bundle_bytes: Upper bound in bytes on this user's bundles in it.
        page: Users who may see the live page.
        trace_url: Address of a trace, with `{trace_id}` in it; '' for none.
        docs_url: Address of the pages on verdicts and findings; '' for the agent's own pages.
        prometheus_host: Address of `/metrics`; `OTEL_EXPORTER_PROMETHEUS_HOST`.
        prometheus_port: Port of `/metrics`, 0 for any free one; `OTEL_EXPORTER_PROMETHEUS_PORT`.
        sdk_disabled: Whether OpenTelemetry as a whole is disabled; `OTEL_SDK_DISABLED`.
        disabled_instrumentations: Instrumentations that stay off; `OTEL_PYTHON_DISABLED_INSTRUMENTATIONS`.
    """

    enabled: bool = _setting(env.OTEL_PYTHON_TORCHDIST_ENABLED, _BOOLEAN, "false")
    share: float = _setting(env.OTEL_PYTHON_TORCHDIST_SHARE, number_up_to(1), "1")
    node_file: Path = _setting(env.OTEL_PYTHON_TORCHDIST_CONFIG, absolute_path(), NODE_FILE)
    reader: ReaderHome = _setting(
        env.OTEL_PYTHON_TORCHDIST_READER, one_of({home.value: home for home in ReaderHome}), "agent"
    )
    capture: CaptureKernel = _setting(
        env.OTEL_PYTHON_TORCHDIST_CAPTURE, one_of({kernel.value: kernel for kernel in CaptureKernel}), "auto"
    )
    agent_linger: float = _setting(env.OTEL_PYTHON_TORCHDIST_AGENT_LINGER, milliseconds(0), "60000")
    stall_timeout: float = _setting(env.OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT, milliseconds(100), "10000")
    idle_after: int = _setting(env.OTEL_PYTHON_TORCHDIST_IDLE_AFTER, integer(0, 1048576), "6")
    hooks: tuple[str, ...] = _setting(env.OTEL_PYTHON_TORCHDIST_HOOKS, list_of_targets(), "")
    numerics: NumericsMode = _setting(
        env.OTEL_PYTHON_TORCHDIST_NUMERICS, one_of({mode.value: mode for mode in NumericsMode}), "off"
    )
    numerics_every: int = _setting(env.OTEL_PYTHON_TORCHDIST_NUMERICS_EVERY, integer(1, 1048576), "64")
    numerics_ranks: tuple[range, ...] = _setting(env.OTEL_PYTHON_TORCHDIST_NUMERICS_RANKS, list_of_ranks(), ALL_RANKS)
    compare_parameters: int = _setting(env.OTEL_PYTHON_TORCHDIST_COMPARE_PARAMETERS, integer(0, 1048576), "0")
    synchronize: bool = _setting(env.OTEL_PYTHON_TORCHDIST_SYNCHRONIZE, _BOOLEAN, "false")
    abort_hooks: bool = _setting(env.OTEL_PYTHON_TORCHDIST_ABORT_HOOKS, _BOOLEAN, "false")
    stall_ignore: tuple[str, ...] = _setting(env.OTEL_PYTHON_TORCHDIST_STALL_IGNORE, list_of_patterns(), "")
    compare_calls: bool = _setting(env.OTEL_PYTHON_TORCHDIST_COMPARE_CALLS, _BOOLEAN, "true")
    critical_path: bool = _setting(env.OTEL_PYTHON_TORCHDIST_CRITICAL_PATH, _BOOLEAN, "true")
    announce: bool = _setting(env.OTEL_PYTHON_TORCHDIST_ANNOUNCE, _BOOLEAN, "true")
    on_stall: tuple[Action, ...] = _setting(env.OTEL_PYTHON_TORCHDIST_ON_STALL, _ACTIONS, "log")
    on_finding: tuple[Action, ...] = _setting(env.OTEL_PYTHON_TORCHDIST_ON_FINDING, _FINDING_ACTIONS, "log")
    on_machine: tuple[Action, ...] = _setting(env.OTEL_PYTHON_TORCHDIST_ON_MACHINE, _FINDING_ACTIONS, "log")
    machine_incidents: Path | None = _setting(
        env.OTEL_PYTHON_TORCHDIST_MACHINE_INCIDENTS, optional(absolute_path()), ""
    )
    machine_incident_days: int = _setting(env.OTEL_PYTHON_TORCHDIST_MACHINE_INCIDENT_DAYS, integer(1, 365), "7")
    on_stall_grace: float = _setting(env.OTEL_PYTHON_TORCHDIST_ON_STALL_GRACE, milliseconds(0), "30000")
    rescue_timeout: float = _setting(env.OTEL_PYTHON_TORCHDIST_RESCUE_TIMEOUT, milliseconds(1), "60000")
    preemption_signals: frozenset[signal.Signals] = _setting(
        env.OTEL_PYTHON_TORCHDIST_PREEMPTION_SIGNALS, list_of_signals(), ""
    )
    dump_dir: Path = _setting(env.OTEL_PYTHON_TORCHDIST_DUMP_DIR, absolute_path(), f"/tmp/otel-torchdist-{os.getuid()}")
    exchange: bool = _setting(env.OTEL_PYTHON_TORCHDIST_EXCHANGE, _BOOLEAN, "true")
    exchange_host: str = _setting(env.OTEL_PYTHON_TORCHDIST_EXCHANGE_HOST, _TEXT, "")
    span_budget: int = _setting(env.OTEL_PYTHON_TORCHDIST_SPAN_BUDGET, integer(1), "1000")
    tape_dir: Path = _setting(
        env.OTEL_PYTHON_TORCHDIST_TAPE_DIR, absolute_path(), f"/dev/shm/otel-torchdist-{os.getuid()}"
    )
    tape_on_disk: bool = _setting(env.OTEL_PYTHON_TORCHDIST_TAPE_ON_DISK, _BOOLEAN, "false")
    tape_records: int = _setting(env.OTEL_PYTHON_TORCHDIST_TAPE_RECORDS, integer(64, 1048576), "16384")
    machine: bool = _setting(env.OTEL_PYTHON_TORCHDIST_MACHINE, _BOOLEAN, "true")
    describe_launch: bool = _setting(env.OTEL_PYTHON_TORCHDIST_DESCRIBE_LAUNCH, _BOOLEAN, "false")
    off_file: Path = _setting(env.OTEL_PYTHON_TORCHDIST_OFF_FILE, absolute_path(), "/etc/otel_torchdist/off")
    overhead_budget: float = _setting(env.OTEL_PYTHON_TORCHDIST_OVERHEAD_BUDGET, number_up_to(100), "1")
    keep_runs: int = _setting(env.OTEL_PYTHON_TORCHDIST_KEEP_RUNS, integer(0), "8")
    keep_bytes: int = _setting(env.OTEL_PYTHON_TORCHDIST_KEEP_BYTES, integer(0, unit=" of bytes"), "268435456")
    archive: Path | None = _setting(env.OTEL_PYTHON_TORCHDIST_ARCHIVE, optional(absolute_path()), "")
    archive_bytes: int = _setting(
        env.OTEL_PYTHON_TORCHDIST_ARCHIVE_BYTES, integer(1048576, unit=" of bytes"), "1073741824"
    )
    bundles: Path | None = _setting(env.OTEL_PYTHON_TORCHDIST_BUNDLES, optional(absolute_path()), "")
    bundle_bytes: int = _setting(
        env.OTEL_PYTHON_TORCHDIST_BUNDLE_BYTES, integer(1048576, unit=" of bytes"), "1073741824"
    )
    page: PageAccess = _setting(
        env.OTEL_PYTHON_TORCHDIST_PAGE, one_of({access.value: access for access in PageAccess}), "loopback"
    )
    trace_url: str = _setting(env.OTEL_PYTHON_TORCHDIST_TRACE_URL, trace_url_template(), "")
    docs_url: str = _setting(env.OTEL_PYTHON_TORCHDIST_DOCS_URL, web_address(), "")
    prometheus_host: str = _setting(env.OTEL_EXPORTER_PROMETHEUS_HOST, _TEXT, "localhost")
    prometheus_port: int = _setting(env.OTEL_EXPORTER_PROMETHEUS_PORT, integer(0, 65535), "9464")
    sdk_disabled: bool = _setting(env.OTEL_SDK_DISABLED, _BOOLEAN, "false")
    disabled_instrumentations: frozenset[str] = _setting(env.OTEL_PYTHON_DISABLED_INSTRUMENTATIONS, list_of_names(), "")

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str] | None = None, files: Sequence[DeclaredFile] | None = None
    ) -> Config:
        """Read every setting: from its environment variable, else from OTEL_CONFIG_FILE, else from the node's file.

        A value that is not accepted is logged as a warning and counts as missing; nothing is raised.

        Args:
            environ: The variables; None for this process's environment.
            files: The files, in order of precedence; None to read the files that `environ` names.
        """
        source = os.environ if environ is None else environ
        files = declared_files(source) if files is None else files
        parameters: dict[str, Parameter[Any]] = {
            field.name: field.metadata[_PARAMETER] for field in dataclasses.fields(cls)
        }
        keys = {name: parameter.variable for name, parameter in parameters.items() if name not in _NOT_IN_FILES}
        sources = [SettingSource(source), *(file_source(file, keys, source) for file in files)]
        found = {name: parameter.level_and_value(sources) for name, parameter in parameters.items()}
        values = {name: value for name, (_, value) in found.items()}
        if found["enabled"][0] < found["share"][0]:
            values["share"] = 1.0
        return cls(**values)

    @property
    def observes_tensors(self) -> bool:
        """Whether a setting requires access to tensors: numerics, comparisons of parameters, hooks, synchronization."""
        has_numerics = self.numerics is not NumericsMode.OFF or self.compare_parameters > 0
        return has_numerics or self.synchronize or bool(self.hooks)

    @property
    def switched_on(self) -> bool:
        """Whether the environment enables the instrumentation and nothing in it disables it."""
        forbidden = self.sdk_disabled or bool(self.disabled_instrumentations & {INSTRUMENTATION_NAME, "*"})
        return self.enabled and not forbidden
