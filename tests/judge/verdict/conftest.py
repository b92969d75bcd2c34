"""Fixtures for tests of verdicts."""

from __future__ import annotations

import pytest

from otel_torchdist.model.calls import GroupView
from tests.support.worlds.fake_world import FakeWorld, group_of


@pytest.fixture
def group() -> GroupView:
    """Return the group of all four ranks."""
    return group_of(0, 1, 2, 3, description="default_pg")


@pytest.fixture
def world(group: GroupView) -> FakeWorld:
    """Return ranks that have completed one operation."""
    world = FakeWorld(4)
    world.meet(group, 0.0)
    return world
