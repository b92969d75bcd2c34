"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import socket

import pytest


@pytest.fixture
def free_port_range() -> int:
    """The first of 16 ports that are free."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            first: int = probe.getsockname()[1]
        if first + 16 <= 65535 and all(_is_free(port) for port in range(first, first + 16)):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
