"""A cluster of Ray with one node, for all tests of this folder, as it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.launchers.ray.running import RayCluster, ray_cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[RayCluster]:
    """The cluster."""
    with ray_cluster() as cluster:
        yield cluster
