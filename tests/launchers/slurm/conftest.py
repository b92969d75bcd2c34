"""A Slurm cluster of two nodes for all tests of this folder, as it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.repository import REPOSITORY
from tests.support.slurm.cluster import SlurmCluster, slurm_cluster
from tests.support.slurm.jobs import copy_to_work

EXAMPLES = REPOSITORY / "examples" / "slurm"
EPILOG = """\
#!/bin/sh
# As many clusters do: nothing of a user stays on a node without a job of the user. Here only in this partition.
test "$SLURM_JOB_PARTITION" = cleaned && rm -rf "/dev/shm/otel-torchdist-$SLURM_JOB_UID"
exit 0
"""


@pytest.fixture(scope="session")
def cluster() -> Iterator[SlurmCluster]:
    """The cluster; its users submit from a directory with the examples and a training."""
    more = ["Epilog={folder}/epilog", "PartitionName=cleaned Nodes=ALL MaxTime=INFINITE State=UP"]
    with slurm_cluster(more=more, files={"epilog": EPILOG}) as cluster:
        copy_to_work(cluster, *EXAMPLES.glob("*.s*"), Path(__file__).parent / "workers" / "train.py")
        yield cluster


@pytest.fixture(autouse=True)
def quiet(request: pytest.FixtureRequest) -> Iterator[None]:
    """End the jobs that a test has left, so that the next finds both nodes free."""
    yield
    if "cluster" in request.fixturenames:
        cluster: SlurmCluster = request.getfixturevalue("cluster")
        cluster.run("scancel", "--user=games", user="root", check=False)
        cluster.run("scancel", "--user=nobody", user="root", check=False)
