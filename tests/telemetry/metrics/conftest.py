"""A node whose ranks the tests write."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tapes.metrics_node import Node


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node without ranks."""
    return Node(tmp_path)
