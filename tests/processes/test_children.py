"""The children of a process whose threads come and go."""

from __future__ import annotations

import os
import subprocess
import threading

from otel_torchdist.processes.children import children_of


def test_children_are_found_while_threads_end() -> None:
    """A thread that ends between two looks at /proc hides no child."""
    is_over = threading.Event()

    def come_and_go() -> None:
        while not is_over.is_set():
            thread = threading.Thread(target=lambda: None)
            thread.start()
            thread.join()

    with subprocess.Popen(["sleep", "600"]) as child:
        threads = [threading.Thread(target=come_and_go) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            assert all(child.pid in children_of(os.getpid()) for _ in range(100))
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
            child.kill()


def test_process_that_is_gone() -> None:
    """It has none."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert children_of(process.pid) == []
