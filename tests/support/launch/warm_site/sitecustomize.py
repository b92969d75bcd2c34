"""Imported by Python at its start where a test has put this folder on PYTHONPATH: torchrun then forks its ranks."""

import sys

if any(argument.endswith(("torch.distributed.run", "/torchrun")) for argument in sys.orig_argv):
    from tests.support.launch.forked_ranks import fork_ranks

    fork_ranks()
