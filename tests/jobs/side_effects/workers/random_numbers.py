"""One rank with everything switched on, whose spans are refused: an exporter that retries would draw a number."""

from __future__ import annotations

import os
import random
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import numpy
import torch
import torch.distributed as dist

from otel_torchdist.capture.parts.steps import mark_step
from tests.support.ranks.rank import join, say
from tests.support.waiting import until

requests: list[str] = []


class Overloaded(BaseHTTPRequestHandler):
    """Asks every client to come back later."""

    def do_POST(self) -> None:
        """Refuse."""
        self.rfile.read(int(self.headers["Content-Length"]))
        requests.append(self.path)
        self.send_response(503)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def states() -> list[Any]:
    """All global random states."""
    numbers = numpy.random.get_state(legacy=False)
    numbers["state"]["key"] = numbers["state"]["key"].tolist()
    return [random.getstate(), numbers, torch.get_rng_state().tolist()]


def train() -> None:
    """What a training uses of us: groups, collectives of all kinds, steps."""
    join()
    group = dist.new_group([0])
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    for _ in range(4):
        parameter.grad = torch.ones(2)
        dist.all_reduce(parameter.grad)
        work = dist.all_reduce(parameter.grad, group=group, async_op=True)
        assert work is not None
        work.wait()
        optimizer.step()
    mark_step()


server = HTTPServer(("127.0.0.1", 0), Overloaded)
threading.Thread(target=server.serve_forever, daemon=True).start()
os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{server.server_port}"
for seed in (random.seed, numpy.random.seed, torch.manual_seed):
    seed(11)
before = states()
train()
until(lambda: requests.count("/v1/traces") > 1)  # it has retried
is_as_before = [one == other for one, other in zip(before, states(), strict=True)]
random.random(), numpy.random.random(), torch.rand(1)
is_as_ever = [one == other for one, other in zip(before, states(), strict=True)]
say(untouched=is_as_before, after_a_draw=is_as_ever)
os._exit(0)
