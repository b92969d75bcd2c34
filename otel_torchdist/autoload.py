"""The ``torch.backends`` entry point: the last step of every ``import torch``.

It runs in every process that imports torch, including torchrun itself and DataLoader workers. Without our switch
it reads one environment variable and returns. With it, it only waits for the first process group, for torchrun to wait
for other nodes, and for launchers whose ranks fail. The switch's value is checked only then, so that an invalid one is
reported by the ranks alone.
"""

import os

_SWITCH = "OTEL_PYTHON_TORCHDIST_ENABLED"
_LAUNCHERS = (
    "torch.distributed.elastic.rendezvous.dynamic_rendezvous",
    "torch.distributed.elastic.rendezvous.static_tcp_rendezvous",
)
"""What torchrun imports to wait for other nodes."""
_FAILURES = (
    "torch.distributed.elastic.multiprocessing.api",
    "torch.distributed.elastic.multiprocessing.errors",
    "torch.multiprocessing.spawn",
)
"""Where launchers start ranks, and report that some have failed."""


def autoload() -> None:
    """Prepare to switch on with the first process group, if the environment asks for it; never raises."""
    if os.environ.get(_SWITCH, "").strip().lower() in ("", "false"):
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


def _switch_on() -> None:
    from otel_torchdist.launch.switch import switch_on_from_environment

    switch_on_from_environment()


def _watch_nodes(module: object) -> None:
    from otel_torchdist.launch.node_rendezvous import watch

    watch(module)


def _watch_failures(module: object) -> None:
    from otel_torchdist.launch.failed_launch import watch

    watch(module)
