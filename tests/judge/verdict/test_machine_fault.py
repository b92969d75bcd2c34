"""Which verdicts blame a machine: those with evidence of it, and never those of the program."""

from __future__ import annotations

import dataclasses
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_torchdist.judge.verdict.first_death import FirstDeath
from otel_torchdist.judge.verdict.machine_fault import FaultyMachine, describe_machines, faulty_machines
from otel_torchdist.model.rank_state.lives import Death, Stopped
from otel_torchdist.model.rank_state.symptoms import MACHINE_XIDS, XID_MEANINGS, Symptom, SymptomKind
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.snapshot import WorldSnapshot
from tests.support.worlds.fake_world import SECOND, START_NS, FakeWorld

SINCE_NS = START_NS + 10 * SECOND
OF_THE_PROGRAM = {VerdictKind.ABSENT, VerdictKind.MISMATCHED, VerdictKind.CIRCULAR, VerdictKind.UNMATCHED}
XID_79 = Symptom(SymptomKind.XID, SINCE_NS - SECOND, 79)

SYMPTOMS = st.builds(
    Symptom,
    st.sampled_from(SymptomKind),
    st.integers(SINCE_NS - 120 * SECOND, SINCE_NS + 20 * SECOND),
    st.sampled_from([*XID_MEANINGS, 0, 1, 43, -5, 1e300]),
    st.just("mlx5_0/1"),
)
DEATHS = st.builds(
    Death,
    at_ns=st.just(SINCE_NS),
    status=st.sampled_from([None, 1 << 8, signal.SIGKILL, signal.SIGBUS, signal.SIGSEGV, signal.SIGTERM]),
    oom=st.sampled_from(["", "cgroup", "node"]),
    with_others=st.booleans(),
    asked=st.sampled_from([0, signal.SIGTERM]),
)
STOPPED = st.sampled_from([None, Stopped("T", SINCE_NS), Stopped("t", SINCE_NS), Stopped("D", SINCE_NS)])


def world_of(
    symptoms: dict[int, tuple[Symptom, ...]] | None = None,
    hosts: tuple[str, ...] = ("n1", "n1", "n2", "n2"),
    stopped: dict[int, Stopped | None] | None = None,
) -> WorldSnapshot:
    """Four ranks on two hosts, with these symptoms and stopped processes."""
    world = FakeWorld(len(hosts)).snapshot(30.0)
    views = {
        rank: dataclasses.replace(
            view, host=hosts[rank], symptoms=(symptoms or {}).get(rank, ()), stopped=(stopped or {}).get(rank)
        )
        for rank, view in world.ranks.items()
    }
    return dataclasses.replace(world, ranks=views)


def death_of(rank: int, death: Death, together: bool = False, may_follow: bool = False) -> FirstDeath:
    """The first death, of one rank."""
    return FirstDeath((rank,), {rank: death}, together, may_follow, False, True, death.at_ns, None, 0)


@given(
    kind=st.sampled_from(VerdictKind),
    named=st.sets(st.integers(0, 3), min_size=1),
    symptoms=st.dictionaries(st.integers(0, 3), st.lists(SYMPTOMS, max_size=3).map(tuple)),
    stopped=st.dictionaries(st.integers(0, 3), STOPPED),
    death=DEATHS,
)
def test_never_for_the_program(
    kind: VerdictKind,
    named: set[int],
    symptoms: dict[int, tuple[Symptom, ...]],
    stopped: dict[int, Stopped | None],
    death: Death,
) -> None:
    """Whatever the machines show, verdicts of the program blame none.

    Others blame only machines of named ranks, with evidence that these machines show, or at most one without.
    """
    first = death_of(min(named), death) if kind is VerdictKind.DEAD else None
    world = world_of(symptoms, stopped=stopped)
    found = faulty_machines(kind, named, first, SINCE_NS, world)
    if kind in OF_THE_PROGRAM:
        assert found == ()
    for machine in found:
        assert set(machine.ranks) <= named
        assert {world.ranks[rank].host for rank in machine.ranks} == {machine.host}
        shown = [symptom for rank in machine.ranks for symptom in symptoms.get(rank, ())]
        is_in_sleep = any(state is not None and state.state == "D" for state in stopped.values())
        assert not machine.is_shown or shown or is_in_sleep
    assert len(found) == 1 or all(machine.is_shown for machine in found)


@pytest.mark.parametrize("kind", VerdictKind)
def test_a_lost_gpu(kind: VerdictKind) -> None:
    """A lost GPU of the named rank blames its machine for these kinds only."""
    found = faulty_machines(kind, [2], None, SINCE_NS, world_of({2: (Symptom(SymptomKind.GPU_LOST, SINCE_NS),)}))
    evidence = "GPU of rank 2: lost, the driver does not reach it"
    blamed = {VerdictKind.DEAD, VerdictKind.FROZEN, VerdictKind.DEVICE, VerdictKind.STUCK, VerdictKind.TRANSPORT}
    assert found == ((FaultyMachine("n2", (2,), (evidence,)),) if kind in blamed else ())


@pytest.mark.parametrize("xid", XID_MEANINGS)
def test_xids(xid: int) -> None:
    """Of NVIDIA's errors, those of hardware blame the machine; those that programs cause do not even count."""
    found = faulty_machines(
        VerdictKind.STUCK, [1], None, SINCE_NS, world_of({1: (dataclasses.replace(XID_79, value=xid),)})
    )
    assert [machine.is_shown for machine in found] == ([True] if xid in MACHINE_XIDS else [])


def test_old_and_foreign_symptoms() -> None:
    """An error from long before the wait, and one of another rank's GPU, show nothing; the verdict still counts."""
    old = dataclasses.replace(XID_79, at_ns=SINCE_NS - 61 * SECOND)
    for symptoms in ({1: (old,)}, {0: (XID_79,)}):
        found = faulty_machines(VerdictKind.STUCK, [1], None, SINCE_NS, world_of(symptoms))
        assert found == (FaultyMachine("n1", (1,)),)


def test_link_of_a_transport() -> None:
    """A verdict that names no rank blames the machines of members whose link went down, and suspects none."""
    down = Symptom(SymptomKind.LINK_DOWN, SINCE_NS, detail="mlx5_0/1")
    world = world_of({2: (down,), 3: (down,)})
    found = faulty_machines(VerdictKind.TRANSPORT, [0, 1, 2, 3], None, SINCE_NS, world)
    assert found == (FaultyMachine("n2", (2, 3), ("link mlx5_0/1 of the node went down",)),)
    assert faulty_machines(VerdictKind.TRANSPORT, [0, 1, 2, 3], None, SINCE_NS, world_of()) == ()


@pytest.mark.parametrize(("state", "is_shown"), [("D", [True]), ("T", []), ("t", [])])
def test_uninterruptible_sleep(state: str, is_shown: list[bool]) -> None:
    """A process that the kernel does not let go blames its machine; one that somebody has stopped does not count."""
    world = world_of(stopped={3: Stopped(state, SINCE_NS)})
    found = faulty_machines(VerdictKind.FROZEN, [3], None, SINCE_NS, world)
    assert [machine.is_shown for machine in found] == is_shown


def test_sleep_in_slow_storage() -> None:
    """If the whole node waits for storage, which nodes share, a process in uninterruptible sleep only counts."""
    slow = Symptom(SymptomKind.STORAGE, SINCE_NS, 0.9)
    world = world_of({3: (slow,)}, stopped={3: Stopped("D", SINCE_NS)})
    assert faulty_machines(VerdictKind.FROZEN, [3], None, SINCE_NS, world) == (FaultyMachine("n2", (3,)),)


@pytest.mark.parametrize(
    ("death", "counts"),
    [
        (Death(SINCE_NS, status=signal.SIGKILL), True),
        (Death(SINCE_NS, status=signal.SIGBUS), True),
        (Death(SINCE_NS, status=signal.SIGSEGV), False),
        (Death(SINCE_NS, status=1 << 8), False),
        (Death(SINCE_NS), False),
        (Death(SINCE_NS, status=signal.SIGKILL, oom="cgroup"), False),
        (Death(SINCE_NS, status=signal.SIGKILL, asked=signal.SIGTERM), False),
        (Death(SINCE_NS, status=signal.SIGKILL, with_others=True), False),
    ],
)
def test_deaths_that_count(death: Death, counts: bool) -> None:
    """A death counts if neither the program, nor its memory, nor a scheduler explains it."""
    found = faulty_machines(VerdictKind.DEAD, [1], death_of(1, death), SINCE_NS, world_of())
    assert found == ((FaultyMachine("n1", (1,)),) if counts else ())
    for common in (death_of(1, death, together=True), death_of(1, death, may_follow=True)):
        assert faulty_machines(VerdictKind.DEAD, [1], common, SINCE_NS, world_of()) == ()


def test_several_hosts() -> None:
    """Ranks on several hosts have a common cause: no host is suspected. Evidence blames each host that shows it."""
    assert faulty_machines(VerdictKind.STUCK, [0, 2], None, SINCE_NS, world_of()) == ()
    world = world_of({0: (XID_79,), 2: (XID_79,)})
    assert [machine.host for machine in faulty_machines(VerdictKind.STUCK, [0, 2], None, SINCE_NS, world)] == [
        "n1",
        "n2",
    ]
    many = world_of(dict.fromkeys(range(40), (XID_79,)), hosts=tuple(f"n{rank}" for rank in range(40)))
    assert faulty_machines(VerdictKind.STUCK, range(40), None, SINCE_NS, many) == ()


def test_words() -> None:
    """The reason names each host with its evidence."""
    machines = (FaultyMachine("n1", (0,), ("a", "b")), FaultyMachine("n2", (2, 3)))
    assert describe_machines(machines) == "n1: a, b; n2: no evidence of the machine, ranks 2-3"
