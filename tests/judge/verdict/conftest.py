"""What several tests of verdicts begin with."""

from __future__ import annotations

import pytest

from otel_torchdist.model.calls import GroupView
from tests.support.worlds.fake_world import FakeWorld, group_of


@pytest.fixture
def group() -> GroupView:
    """All four ranks."""
    return group_of(0, 1, 2, 3, description="default_pg")


@pytest.fixture
def world(group: GroupView) -> FakeWorld:
    """Ranks that have met once."""
    world = FakeWorld(4)
    world.meet(group, 0.0)
    return world
