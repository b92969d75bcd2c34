"""The settings, read once from the environment, and the actions on a stall that one of them lists.

``Config`` is the table: for each setting its variable, what it accepts, and its default as written in the
environment. Their meaning is documented in ``environment_variables``. Neither torch nor OpenTelemetry is imported
here, because ``capture`` needs the settings too.
"""

from __future__ import annotations

import dataclasses
import enum
import logging
import os
import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from otel_torchdist import environment_variables as env
from otel_torchdist.package import INSTRUMENTATION_NAME

TRACE_ID_PLACE: Final = "{trace_id}"
_TRACE_URL: Final = re.compile(r"https?://[!-~]+")
_TARGET: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class ActionKind(enum.Enum):
    """The kinds of actions; the value is the word in the setting."""

    LOG = "log"
    """A warning in the log, which is always written."""
    DUMP = "dump"
    """A bundle of evidence from each node."""
    ABORT = "abort"
    """End the ranks, so that the launcher starts them again."""
    COMMAND = "command"
    """Run a user's program."""
    CALLBACK = "callback"
    """Call a user's function."""
    RESCUE = "rescue"
    """Call a user's function in each rank, which saves its state."""


@dataclass(frozen=True, slots=True)
class Action:
    """One action on a stall.

    Attributes:
        kind: Its kind.
        target: The command line, or `module:function`; '' for the other kinds.
    """

    kind: ActionKind
    target: str = ""

    @property
    def is_local(self) -> bool:
        """Whether every node performs it; other actions are performed once for the run."""
        return self.kind in (ActionKind.DUMP, ActionKind.ABORT, ActionKind.RESCUE)


def parse_actions(text: str) -> tuple[Action, ...]:
    """Read a list such as `dump,abort` or `callback:alarm:ring,command:/usr/bin/page --team training, infra`.

    Raises:
        ValueError: A word is not an action, a function is not `module:function`, a command is empty, or ranks would be
            rescued after they have been ended.
    """
    actions: list[Action] = []
    rest = text.strip()
    while rest:
        if rest.startswith("command:"):  # a command may contain commas, so it is the last action
            word, rest = rest, ""
        else:
            word, _, rest = (part.strip() for part in rest.partition(","))
        actions.append(_action(word))
    kinds = [action.kind for action in actions]
    if ActionKind.ABORT in kinds and ActionKind.RESCUE in kinds[kinds.index(ActionKind.ABORT) :]:
        raise ValueError("rescue after abort")
    return tuple(dict.fromkeys(actions))


def parse_finding_actions(text: str) -> tuple[Action, ...]:
    """Read a list of actions on findings: as on stalls, but without `rescue`, for which ranks must wait.

    Raises:
        ValueError: As for `parse_actions`, or ranks should be rescued.
    """
    actions = parse_actions(text)
    if any(action.kind is ActionKind.RESCUE for action in actions):
        raise ValueError("rescue")
    return actions


def _action(word: str) -> Action:
    name, _, target = (part.strip() for part in word.partition(":"))
    kind = ActionKind(name)
    takes_target = kind in (ActionKind.COMMAND, ActionKind.CALLBACK, ActionKind.RESCUE)
    if takes_target != bool(target):
        raise ValueError(word)
    if kind in (ActionKind.CALLBACK, ActionKind.RESCUE) and not _TARGET.fullmatch(target):
        raise ValueError(word)
    return Action(kind, target)


_LONGEST_MILLISECONDS = 2**31 - 1
_PARAMETER = "parameter"

_logger = logging.getLogger("otel_torchdist")

T = TypeVar("T")
E = TypeVar("E", bound=Enum)


class ReaderHome(Enum):
    """Where the tapes are read."""

    AGENT = "agent"
    THREAD = "thread"
    NONE = "none"


class CaptureKernel(Enum):
    """What records the calls."""

    AUTO = "auto"
    """The native library if there is one for this torch and Python, else Python."""
    NATIVE = "native"
    """The same, with a warning if there is none."""
    PYTHON = "python"


class NumericsMode(Enum):
    """Which operations' tensors are looked at."""

    OFF = "off"
    SAMPLED = "sampled"
    """Statistics and checksums of a sample."""
    ALL = "all"
    """The same, and whether all inputs of all operations are finite."""


class PageAccess(Enum):
    """Who may see the live page."""

    OFF = "off"
    LOOPBACK = "loopback"
    """Users of this machine, each the jobs of their own."""
    ON = "on"
    """Everyone who reaches the port of `/metrics`."""


@dataclass(frozen=True)
class Accepted(Generic[T]):
    """What a setting accepts.

    Attributes:
        wording: How a warning describes it.
        parse: Turns stripped, non-empty text into the value; raises ValueError if it is not accepted.
    """

    wording: str
    parse: Callable[[str], T]


@dataclass(frozen=True)
class Parameter(Generic[T]):
    """A row of the table.

    Attributes:
        variable: The environment variable.
        accepted: What it accepts.
        default: The default, as text in the same form.
    """

    variable: str
    accepted: Accepted[T]
    default: str

    def default_value(self) -> T:
        """Return the default as a value."""
        return self.accepted.parse(self.default)

    def value_in(self, environ: Mapping[str, str]) -> T:
        """Return the value from an environment; warn and return the default if it cannot be used."""
        text = environ.get(self.variable, "").strip()
        if not text:
            return self.default_value()
        try:
            return self.accepted.parse(text)
        except ValueError:
            _logger.warning(
                "%s=%.100r is not %s: using %s", self.variable, text, self.accepted.wording, self.default or "none"
            )
            return self.default_value()


def _one_of(choices: Mapping[str, T]) -> Accepted[T]:
    def parse(text: str) -> T:
        if text.lower() not in choices:
            raise ValueError(text)
        return choices[text.lower()]

    *others, last = choices
    return Accepted(f"{', '.join(others)} or {last}", parse)


def _integer(least: int, most: int | None = None, unit: str = "") -> Accepted[int]:
    def parse(text: str) -> int:
        # int() alone would also accept signs, underscores and the digits of other scripts.
        if not (text.isascii() and text.isdecimal()):
            raise ValueError(text)
        number = int(text)
        if number < least or (most is not None and number > most):
            raise ValueError(text)
        return number

    limits = f"at least {least}" if most is None else f"from {least} to {most}"
    return Accepted(f"a whole number{unit} {limits}", parse)


def _milliseconds(least: int) -> Accepted[float]:
    whole = _integer(least, _LONGEST_MILLISECONDS, unit=" of milliseconds")
    return Accepted(whole.wording, lambda text: whole.parse(text) / 1000)


def _absolute_path() -> Accepted[Path]:
    def parse(text: str) -> Path:
        # Ranks and agent may run in different directories and must find the same one.
        if not os.path.isabs(text):
            raise ValueError(text)
        return Path(text)

    return Accepted("an absolute path", parse)


def _optional(accepted: Accepted[T]) -> Accepted[T | None]:
    return Accepted(accepted.wording, lambda text: accepted.parse(text) if text else None)


def _list_of_names() -> Accepted[frozenset[str]]:
    def parse(text: str) -> frozenset[str]:
        return frozenset(name.strip() for name in text.split(",")) - {""}

    return Accepted("a comma-separated list", parse)


def _list_of_patterns() -> Accepted[tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        return tuple(pattern for part in text.split(",") if (pattern := part.strip()))

    return Accepted("a comma-separated list", parse)


def _list_of_signals() -> Accepted[frozenset[signal.Signals]]:
    def parse(text: str) -> frozenset[signal.Signals]:
        return frozenset(_signal(name) for name in _list_of_patterns().parse(text))

    return Accepted("a comma-separated list of signals such as SIGTERM", parse)


def _signal(name: str) -> signal.Signals:
    known = {one.name: one for one in signal.Signals}
    if name not in known:
        raise ValueError(name)
    return known[name]


def _list_of_targets() -> Accepted[tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        targets = _list_of_patterns().parse(text)
        if not all(map(_TARGET.fullmatch, targets)):
            raise ValueError(text)
        return targets

    return Accepted("a comma-separated list of module:name", parse)


_RANKS: Final = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?", re.ASCII)
ALL_RANKS: Final = "all"


def _ranks() -> Accepted[tuple[range, ...]]:
    def parse(text: str) -> tuple[range, ...]:
        if text.lower() == ALL_RANKS:
            return ()
        found: list[range] = []
        for part in text.split(","):
            match = _RANKS.fullmatch(part.strip())
            if match is None or int(match[2] or match[1]) < int(match[1]):
                raise ValueError(text)
            found.append(range(int(match[1]), int(match[2] or match[1]) + 1))
        return tuple(found)

    return Accepted("all, or a list of ranks such as 0,8-15", parse)


def _trace_url() -> Accepted[str]:
    def parse(text: str) -> str:
        # It becomes a link on a page: `javascript:` and the like must never.
        if text and (not _TRACE_URL.fullmatch(text) or TRACE_ID_PLACE not in text):
            raise ValueError(text)
        return text

    return Accepted(f"an http or https address with {TRACE_ID_PLACE} in it", parse)


_BOOLEAN = _one_of({"true": True, "false": False})
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

    `Config.from_environment()` reads them from the environment variables; `Config()` has the defaults, and keyword
    arguments replace single ones. Durations are in seconds here and in milliseconds in the environment. The variable of
    a field is `OTEL_PYTHON_TORCHDIST_` and its name in capital letters, unless another one is given.

    `TorchDistInstrumentor().instrument(config=...)` uses a configuration as it is. With `reader` at its default it
    starts an agent, which uses neither the program's providers nor its `on_stall`; `ReaderHome.THREAD` uses both.

    Attributes:
        enabled: Whether the environment switches the instrumentation on; see `switched_on`.
        reader: Where the tapes are read: in an agent (the default), in a thread of each rank, or nowhere.
        capture: What records the calls: the native library where there is one (the default), or Python.
        agent_linger: Seconds for which the agent keeps running after the last rank.
        stall_timeout: Age in seconds at which an open operation is stalled.
        hooks: Functions or `Hooks`, as `module:name`, that are called around operations.
        numerics: Which operations' tensors are looked at.
        numerics_every: One in so many operations is sampled, of large messages fewer.
        numerics_ranks: Ranks that look at their tensors; empty for all.
        compare_parameters: Parameters of DDP's replicas are compared before each so-many-th step; 0 for never.
        synchronize: Whether devices are synchronised around collectives, for debugging.
        abort_hooks: Whether backends report that they give up an operation.
        stall_ignore: Patterns (`*`, `?`) of operations that are never reported as stalled: names, groups, call sites.
        compare_calls: Whether calls are compared between ranks while nothing stalls.
        critical_path: Whether an agent finds the critical path of the newest steps from time to time.
        on_stall: Actions on a stall, in addition to a warning in the log.
        on_finding: Actions on a finding without a stall, in addition to a warning in the log.
        on_stall_grace: Seconds for which a verdict must have stood before they are run.
        rescue_timeout: Seconds that the function of `rescue` may take.
        preemption_signals: Signals that announce the end of the job.
        dump_dir: Directory of the bundles of evidence that the action `dump` writes.
        exchange: Whether agents of different nodes exchange data.
        exchange_host: Address on which an agent listens for its peers; '' to determine it automatically.
        span_budget: Spans per second and rank.
        tape_dir: The base directory of the tapes.
        tape_on_disk: Whether that directory may be outside of tmpfs.
        tape_records: Records in a tape, of 128 bytes each.
        machine: Whether the agent reads the machine: memory, pressure, links, processes, GPUs.
        describe_launch: Whether command line and commit are passed on.
        keep_runs: Number of job directories of ended runs that are kept.
        keep_bytes: Bytes that they may take in total.
        archive: Directory into which whole runs are archived; None for no archive.
        archive_bytes: Bytes that the archive of one run may take for each node.
        page: Who may see the live page.
        trace_url: Address of a trace, with `{trace_id}` in it; '' for none.
        prometheus_host: Address of `/metrics`; `OTEL_EXPORTER_PROMETHEUS_HOST`.
        prometheus_port: Port of `/metrics`, 0 for any free one; `OTEL_EXPORTER_PROMETHEUS_PORT`.
        sdk_disabled: Whether OpenTelemetry as a whole is disabled; `OTEL_SDK_DISABLED`.
        disabled_instrumentations: Instrumentations that stay off; `OTEL_PYTHON_DISABLED_INSTRUMENTATIONS`.
    """

    enabled: bool = _setting(env.OTEL_PYTHON_TORCHDIST_ENABLED, _BOOLEAN, "false")
    reader: ReaderHome = _setting(
        env.OTEL_PYTHON_TORCHDIST_READER, _one_of({home.value: home for home in ReaderHome}), "agent"
    )
    capture: CaptureKernel = _setting(
        env.OTEL_PYTHON_TORCHDIST_CAPTURE, _one_of({kernel.value: kernel for kernel in CaptureKernel}), "auto"
    )
    agent_linger: float = _setting(env.OTEL_PYTHON_TORCHDIST_AGENT_LINGER, _milliseconds(0), "60000")
    stall_timeout: float = _setting(env.OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT, _milliseconds(100), "10000")
    hooks: tuple[str, ...] = _setting(env.OTEL_PYTHON_TORCHDIST_HOOKS, _list_of_targets(), "")
    numerics: NumericsMode = _setting(
        env.OTEL_PYTHON_TORCHDIST_NUMERICS, _one_of({mode.value: mode for mode in NumericsMode}), "off"
    )
    numerics_every: int = _setting(env.OTEL_PYTHON_TORCHDIST_NUMERICS_EVERY, _integer(1, 1048576), "64")
    numerics_ranks: tuple[range, ...] = _setting(env.OTEL_PYTHON_TORCHDIST_NUMERICS_RANKS, _ranks(), ALL_RANKS)
    compare_parameters: int = _setting(env.OTEL_PYTHON_TORCHDIST_COMPARE_PARAMETERS, _integer(0, 1048576), "0")
    synchronize: bool = _setting(env.OTEL_PYTHON_TORCHDIST_SYNCHRONIZE, _BOOLEAN, "false")
    abort_hooks: bool = _setting(env.OTEL_PYTHON_TORCHDIST_ABORT_HOOKS, _BOOLEAN, "false")
    stall_ignore: tuple[str, ...] = _setting(env.OTEL_PYTHON_TORCHDIST_STALL_IGNORE, _list_of_patterns(), "")
    compare_calls: bool = _setting(env.OTEL_PYTHON_TORCHDIST_COMPARE_CALLS, _BOOLEAN, "true")
    critical_path: bool = _setting(env.OTEL_PYTHON_TORCHDIST_CRITICAL_PATH, _BOOLEAN, "true")
    on_stall: tuple[Action, ...] = _setting(env.OTEL_PYTHON_TORCHDIST_ON_STALL, _ACTIONS, "log")
    on_finding: tuple[Action, ...] = _setting(env.OTEL_PYTHON_TORCHDIST_ON_FINDING, _FINDING_ACTIONS, "log")
    on_stall_grace: float = _setting(env.OTEL_PYTHON_TORCHDIST_ON_STALL_GRACE, _milliseconds(0), "30000")
    rescue_timeout: float = _setting(env.OTEL_PYTHON_TORCHDIST_RESCUE_TIMEOUT, _milliseconds(1), "60000")
    preemption_signals: frozenset[signal.Signals] = _setting(
        env.OTEL_PYTHON_TORCHDIST_PREEMPTION_SIGNALS, _list_of_signals(), ""
    )
    dump_dir: Path = _setting(
        env.OTEL_PYTHON_TORCHDIST_DUMP_DIR, _absolute_path(), f"/tmp/otel-torchdist-{os.getuid()}"
    )
    exchange: bool = _setting(env.OTEL_PYTHON_TORCHDIST_EXCHANGE, _BOOLEAN, "true")
    exchange_host: str = _setting(env.OTEL_PYTHON_TORCHDIST_EXCHANGE_HOST, _TEXT, "")
    span_budget: int = _setting(env.OTEL_PYTHON_TORCHDIST_SPAN_BUDGET, _integer(1), "1000")
    tape_dir: Path = _setting(
        env.OTEL_PYTHON_TORCHDIST_TAPE_DIR, _absolute_path(), f"/dev/shm/otel-torchdist-{os.getuid()}"
    )
    tape_on_disk: bool = _setting(env.OTEL_PYTHON_TORCHDIST_TAPE_ON_DISK, _BOOLEAN, "false")
    tape_records: int = _setting(env.OTEL_PYTHON_TORCHDIST_TAPE_RECORDS, _integer(64, 1048576), "16384")
    machine: bool = _setting(env.OTEL_PYTHON_TORCHDIST_MACHINE, _BOOLEAN, "true")
    describe_launch: bool = _setting(env.OTEL_PYTHON_TORCHDIST_DESCRIBE_LAUNCH, _BOOLEAN, "false")
    keep_runs: int = _setting(env.OTEL_PYTHON_TORCHDIST_KEEP_RUNS, _integer(0), "8")
    keep_bytes: int = _setting(env.OTEL_PYTHON_TORCHDIST_KEEP_BYTES, _integer(0, unit=" of bytes"), "268435456")
    archive: Path | None = _setting(env.OTEL_PYTHON_TORCHDIST_ARCHIVE, _optional(_absolute_path()), "")
    archive_bytes: int = _setting(
        env.OTEL_PYTHON_TORCHDIST_ARCHIVE_BYTES, _integer(1048576, unit=" of bytes"), "1073741824"
    )
    page: PageAccess = _setting(
        env.OTEL_PYTHON_TORCHDIST_PAGE, _one_of({access.value: access for access in PageAccess}), "loopback"
    )
    trace_url: str = _setting(env.OTEL_PYTHON_TORCHDIST_TRACE_URL, _trace_url(), "")
    prometheus_host: str = _setting(env.OTEL_EXPORTER_PROMETHEUS_HOST, _TEXT, "localhost")
    prometheus_port: int = _setting(env.OTEL_EXPORTER_PROMETHEUS_PORT, _integer(0, 65535), "9464")
    sdk_disabled: bool = _setting(env.OTEL_SDK_DISABLED, _BOOLEAN, "false")
    disabled_instrumentations: frozenset[str] = _setting(
        env.OTEL_PYTHON_DISABLED_INSTRUMENTATIONS, _list_of_names(), ""
    )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Config:
        """Read every setting from environment variables.

        A value that cannot be used is logged as a warning, and the default is used instead; nothing is raised.

        Args:
            environ: The variables; those of this process if not given.
        """
        source = os.environ if environ is None else environ
        values: dict[str, Any] = {
            field.name: field.metadata[_PARAMETER].value_in(source) for field in dataclasses.fields(cls)
        }
        return cls(**values)

    @property
    def observes_tensors(self) -> bool:
        """Whether a setting asks for something to look at the tensors of operations, or of the model."""
        has_numerics = self.numerics is not NumericsMode.OFF or self.compare_parameters > 0
        return has_numerics or self.synchronize or bool(self.hooks)

    @property
    def switched_on(self) -> bool:
        """Whether the environment enables the instrumentation and nothing in it disables it."""
        forbidden = self.sdk_disabled or bool(self.disabled_instrumentations & {INSTRUMENTATION_NAME, "*"})
        return self.enabled and not forbidden
