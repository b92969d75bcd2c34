"""Reasons why jobs on this node are not recorded: settings, the configuration files, and the off switch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from otel_torchdist.config import Config, declared_files
from otel_torchdist.config.sources import SECTION
from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_ENABLED, OTEL_PYTHON_TORCHDIST_SHARE
from otel_torchdist.node.job.share import belongs_to_share, job_id
from otel_torchdist.node.off_switch import OffSwitch
from otel_torchdist.package import INSTRUMENTATION_NAME

_AUTOLOAD: Final = "TORCH_DEVICE_BACKEND_AUTOLOAD"


def with_reasons(message: str, environ: Mapping[str, str], config: Config) -> str:
    """Append possible reasons to a message that no job exists."""
    return "\n".join([message, *(f"  {reason}" for reason in recording_obstacles(environ, config))])


def recording_obstacles(environ: Mapping[str, str], config: Config) -> list[str]:
    """Return what prevents recording of jobs with this environment on this node, one sentence each.

    `config` is the configuration read from `environ` and the configuration files.
    """
    obstacles: list[str] = []
    off = OffSwitch(config.off_file, config.tape_dir).found()
    if off is not None:
        obstacles.append(f"recording is switched off on this node while {off} exists")
    switch = environ.get(OTEL_PYTHON_TORCHDIST_ENABLED, "").strip()
    obstacles += _in_files(environ, config, has_switch=bool(switch))
    if not switch and not config.enabled:
        return obstacles  # the environment of the job may set it
    if not config.enabled:
        obstacles.append(f"{OTEL_PYTHON_TORCHDIST_ENABLED}={switch} is not `true`")
    autoload = environ.get(_AUTOLOAD, "1")
    if autoload != "1":  # torch accepts no other value
        obstacles.append(
            f"{_AUTOLOAD}={autoload} keeps torch from loading otel_torchdist: leave it out, start the job with "
            "`opentelemetry-instrument`, or call `TorchDistInstrumentor().instrument()`"
        )
    if config.sdk_disabled:
        obstacles.append("OTEL_SDK_DISABLED=true switches all of OpenTelemetry off")
    for name in sorted(config.disabled_instrumentations & {INSTRUMENTATION_NAME, "*"}):
        obstacles.append(f"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS contains `{name}`")
    share = _left_out(environ, config)
    return [*obstacles, share] if share else obstacles


def _in_files(environ: Mapping[str, str], config: Config, *, has_switch: bool) -> list[str]:
    """Return what is wrong with the configuration files, and whether one switches recording off."""
    files = declared_files(environ)
    obstacles = [f"{file.name}: {file.problem}: its settings are not used" for file in files if file.problem]
    section = next((file for file in files if SECTION[-1] in file.part(*SECTION[:-1])), None)
    if section is not None and not has_switch and not config.enabled:
        obstacles.append(
            f"{section.name} switches recording off (`enabled` of `{SECTION[-1]}`) for jobs whose environment does "
            f"not set {OTEL_PYTHON_TORCHDIST_ENABLED}=true"
        )
    return obstacles


def _left_out(environ: Mapping[str, str], config: Config) -> str:
    """Return that a job, or most jobs, are not in the recorded share; '' if this job is, or all are."""
    if config.share >= 1:
        return ""
    in_files = (file.name for file in declared_files(environ) if "share" in file.part(*SECTION))
    by_variable = environ.get(OTEL_PYTHON_TORCHDIST_SHARE, "").strip()
    source = f"{OTEL_PYTHON_TORCHDIST_SHARE}={by_variable}" if by_variable else next(in_files, "a configuration file")
    share, job = f"{100 * config.share:g}%", job_id(environ)
    remedy = f"{OTEL_PYTHON_TORCHDIST_ENABLED}=true in the environment of a job records it in any case"
    if not job:
        return f"only the share of {share} of jobs that {source} sets is recorded; {remedy}"
    if belongs_to_share(config.share, environ):
        return ""
    return f"this job ({job}) is not in the share of {share} that {source} sets; {remedy}"
