"""Trains a small model with Ray Train, on CPUs: `python train.py`. `--hang 60` stops one worker for a minute."""

import argparse
import os
import signal
import time
from typing import Any

import ray
import ray.train
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model


def load_batch(step: int, config: dict[str, Any]) -> torch.Tensor:
    """Return a batch. In one step, one worker hangs, raises an exception, or is killed, if the command line asks."""
    if ray.train.get_context().get_world_rank() == 1 and step == 5:
        time.sleep(config["hang"])
        if config["kill"]:
            os.kill(os.getpid(), signal.SIGKILL)
        if config["fail"] and not os.path.exists(config["fail"]):
            open(config["fail"], "w").close()  # the next attempt succeeds
            raise ValueError("bad batch")
    return torch.randn(8, 16)


def train(config: dict[str, Any]) -> None:
    """Train in a worker. Ray Train has created the process group."""
    model = prepare_model(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = torch.zeros(())
    for step in range(10):
        loss = model(load_batch(step, config)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.5)
    ray.train.report({"loss": loss.item()})


def main() -> None:
    """Start the workers, and wait for them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="example")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runs", type=int, default=1, help="number of trainings, one after the other")
    parser.add_argument("--storage", default=os.path.expanduser("~/ray_results"))
    parser.add_argument("--hang", type=float, default=0, help="seconds for which one worker hangs")
    parser.add_argument("--fail", default="", help="path of a file that does not exist yet: one worker fails once")
    parser.add_argument("--kill", action="store_true", help="one worker is killed")
    arguments = parser.parse_args()

    # Workers get the environment of their node, and not of this process: pass the variables on.
    settings = {name: value for name, value in os.environ.items() if name.startswith("OTEL_")}
    # `ray job submit` has passed them on already, and Ray refuses a variable that is set twice.
    passed = {} if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ else {"OTEL_PYTHON_TORCHDIST_ENABLED": "true"} | settings
    ray.init(runtime_env={"env_vars": passed})
    for number in range(arguments.runs):
        name = arguments.name if arguments.runs == 1 else f"{arguments.name}-{number}"
        result = TorchTrainer(
            train,
            train_loop_config=vars(arguments),
            scaling_config=ScalingConfig(num_workers=arguments.workers),
            run_config=RunConfig(
                name=name, storage_path=arguments.storage, failure_config=FailureConfig(int(bool(arguments.fail)))
            ),
        ).fit()
        print("metrics:", result.metrics)


if __name__ == "__main__":
    main()
