"""Calls of several threads: the main thread, short-lived ones, a pool's, and a library's."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

from tests.support.ranks.rank import join, start_capture


def reduce() -> None:
    """One line for all of them."""
    dist.all_reduce(torch.ones(2))


def save() -> None:
    """What a new thread runs each time."""
    reduce()


def evaluate() -> None:
    """What a pool is given."""
    reduce()


class Logger(threading.Thread):
    """A thread with a method of its own."""

    def run(self) -> None:
        """Log."""
        reduce()


def main() -> None:
    """One after the other."""
    join()
    start_capture()
    reduce()
    for _ in range(3):
        saver = threading.Thread(target=save)
        saver.start()
        saver.join()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(evaluate).result()
        pool.submit(evaluate).result()
    logger = Logger()
    logger.start()
    logger.join()
    gradient = threading.Thread(target=torch.autograd.backward, args=(torch.ones(1, requires_grad=True).sum(),))
    gradient.start()
    gradient.join()
    reduce()


if __name__ == "__main__":
    main()
