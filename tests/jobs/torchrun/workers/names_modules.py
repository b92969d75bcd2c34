"""A rank that reduces a few times, and then prints the packages of OpenTelemetry that it has.

Packages in its arguments are not installed for it.
"""

import json
import sys

PACKAGES = ("opentelemetry", "opentelemetry.sdk", "opentelemetry.configuration")

for name in list(sys.modules):  # the interpreter from which tests fork has loaded more than a user's
    if name.startswith("opentelemetry"):
        del sys.modules[name]
for name in sys.argv[1:]:
    sys.modules[name] = None

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

dist.init_process_group("gloo")
for _ in range(4):
    dist.all_reduce(torch.ones(2))
dist.barrier()
loaded = [name for name in PACKAGES if name in sys.modules]
dist.destroy_process_group()
print(json.dumps(loaded), flush=True)
