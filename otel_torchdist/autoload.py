"""The ``torch.backends`` entry point: the last step of every ``import torch``.

It runs in every process that imports torch, including torchrun and DataLoader workers. If our switch is off, it only
reads environment variables, and asks whether the node has a configuration file. If the switch is on, or a file may
switch on, it waits for the first process group, for torchrun's rendezvous, and for failing launches. Files are read
and the switch is validated only then, so that only ranks report what is invalid.
"""

import os

_SWITCH = "OTEL_PYTHON_TORCHDIST_ENABLED"
_JOB_FILE = "OTEL_CONFIG_FILE"
_NODE_FILE = "OTEL_PYTHON_TORCHDIST_CONFIG"
_DEFAULT_NODE_FILE = "/etc/otel_torchdist/config.yaml"
_LAUNCHERS = (
    "torch.distributed.elastic.rendezvous.dynamic_rendezvous",
    "torch.distributed.elastic.rendezvous.static_tcp_rendezvous",
)
"""Modules of torchrun's rendezvous."""
_FAILURES = (
    "torch.distributed.elastic.multiprocessing.api",
    "torch.distributed.elastic.multiprocessing.errors",
    "torch.multiprocessing.spawn",
)
"""Modules that start ranks and report their failure."""


def autoload() -> None:
    """Prepare to switch on with the first process group, if the environment enables it. Never raises."""
    switch = os.environ.get(_SWITCH, "").strip().lower()
    if switch == "false" or (not switch and not _has_file()):
        return
    try:
        from otel_torchdist.launch.first_group import when_first_group
        from otel_torchdist.system.when_imported import when_imported

        when_first_group(_switch_on)
        for launcher in _LAUNCHERS:
            when_imported(launcher, _watch_nodes)
        for launcher in _FAILURES:
            when_imported(launcher, _watch_failures)
    except Exception as error:
        from otel_torchdist import guard

        guard.report("autoload", error)


def _has_file() -> bool:
    """Return whether a configuration file may switch on."""
    if os.environ.get(_JOB_FILE, "").strip():
        return True
    path = os.environ.get(_NODE_FILE, "").strip()
    return os.path.exists(path if os.path.isabs(path) else _DEFAULT_NODE_FILE)


def _switch_on() -> None:
    from otel_torchdist.launch.switch import switch_on_from_environment

    switch_on_from_environment()


def _watch_nodes(module: object) -> None:
    from otel_torchdist.launch.node_rendezvous import watch

    watch(module)


def _watch_failures(module: object) -> None:
    from otel_torchdist.launch.failed_launch import watch

    watch(module)
