"""The share of jobs that is recorded: alike in all ranks, and as large as it should be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_torchdist.node.job.share import belongs_to_share, job_id, position

VARIABLES = ["SLURM_JOB_ID", "PBS_JOBID", "K8S_JOB_NAME", "RAY_JOB_ID", "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE"]


@given(
    st.sampled_from(VARIABLES),
    st.text(st.characters(blacklist_categories=["Cs"])).filter(str.strip),
    st.floats(0, 1),
    st.lists(st.tuples(st.integers(0, 511), st.integers(0, 7)), min_size=2),
)
def test_all_ranks_decide_alike(variable: str, job: str, share: float, ranks: list[tuple[int, int]]) -> None:
    """Variables that differ among the ranks of a job (rank, node, pod, attempt) have no influence."""
    decisions = {
        belongs_to_share(
            share,
            {
                variable: job,
                "RANK": str(rank),
                "LOCAL_RANK": str(local),
                "SLURM_PROCID": str(rank),
                "HOSTNAME": f"node{rank // 8}",
                "TORCHELASTIC_RESTART_COUNT": str(local),
                "TORCHELASTIC_ERROR_FILE": f"/tmp/torchelastic_{rank // 8}/run/attempt_0/{local}/error.json",
                "MASTER_ADDR": "node0",
            },
        )
        for rank, local in ranks
    }
    assert len(decisions) == 1


@pytest.mark.parametrize("share", [0.01, 0.3, 0.9])
def test_size_of_the_share(share: float) -> None:
    """Of 10,000 consecutive job ids the share is chosen, within three standard deviations."""
    chosen = sum(belongs_to_share(share, {"SLURM_JOB_ID": str(4_200_000 + job)}) for job in range(10_000))
    assert abs(chosen - 10_000 * share) < 3 * (10_000 * share * (1 - share)) ** 0.5


def test_larger_share_includes_smaller() -> None:
    """A rollout that grows never loses a job that it had, so their dashboards go on."""
    jobs = [{"SLURM_JOB_ID": str(job)} for job in range(2_000)]
    for smaller, larger in ((0.0, 0.1), (0.1, 0.5), (0.5, 1.0)):
        assert all(belongs_to_share(larger, job) for job in jobs if belongs_to_share(smaller, job))
    assert not any(belongs_to_share(0.0, job) for job in jobs)
    assert all(belongs_to_share(1.0, job) for job in jobs)


def test_positions_never_change() -> None:
    """The hash is part of the interface: a new version must not move jobs, or ranks of two versions, apart."""
    assert round(position("SLURM_JOB_ID=1"), 6) == POSITION


POSITION = 0.170289


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ""),
        ({"SLURM_JOB_ID": "7", "TORCHELASTIC_RUN_ID": "x", "MASTER_ADDR": "a"}, "SLURM_JOB_ID=7"),
        ({"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}, "node0:29500"),
        ({"TORCHELASTIC_RUN_ID": "42", "MASTER_ADDR": "node0"}, "TORCHELASTIC_RUN_ID=42"),
        ({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}, ""),
        ({"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}, ""),
    ],
)
def test_id(environ: dict[str, str], expected: str) -> None:
    """The scheduler's id is preferred, torchrun's default is none, and a loopback address names no job."""
    assert job_id(environ) == expected
    assert belongs_to_share(1.0, environ)
    assert belongs_to_share(0.999999999, environ) is bool(expected)


def test_torchrun_on_one_node_without_an_id() -> None:
    """Two jobs on a node with torchrun's defaults differ, though they share the id `none` and the address."""
    common = {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
    common |= {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}
    ids = {
        job_id(common | {"TORCHELASTIC_ERROR_FILE": f"/tmp/torchelastic_{job}/none_x/attempt_0/{rank}/error.json"})
        for job in ("a", "b")
        for rank in range(8)
    }
    assert len(ids) == 2
