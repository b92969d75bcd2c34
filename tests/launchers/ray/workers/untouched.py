"""Jobs of Ray without a process group: tasks that import torch, and a data set."""

import os

import ray
import ray.data


@ray.remote
def add(number: int) -> int:
    """Use torch in a worker in which recording is switched on."""
    import torch

    assert os.environ["OTEL_PYTHON_TORCHDIST_ENABLED"] == "true"
    return int(torch.ones(number).sum())


ray.init(
    runtime_env={
        "env_vars": {name: value for name, value in os.environ.items() if name.startswith("OTEL_")}
        | {"OTEL_PYTHON_TORCHDIST_ENABLED": "true"}
    }
)
print("sum:", sum(ray.get([add.remote(number) for number in range(4)])))
rows = ray.data.range(4).map(lambda row: {"id": row["id"] + 1}).take_all()
print("rows:", sum(row["id"] for row in rows))
