"""The leader from one agent's view: pure, on a clock that the test moves."""

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_torchdist.agent.exchange.pace import PACE, Election

OWN = 5


def test_no_other_agent_has_asked() -> None:
    """An agent that has received from no other judges by itself, at any time."""
    assert [Election(OWN).judge(now) for now in (0.0, 1e9)] == [OWN, OWN]


def test_lowest_of_those_that_ask() -> None:
    """Of several agents that ask, the lowest judges; one with a higher id than our own never does."""
    election = Election(OWN)
    for agent_id in (3, 1, 2, 9):
        election.asked_by(agent_id, 10.0, is_hurried=False)
    assert election.judge(10.0) == 1
    election.silent(1, 10.0)
    assert election.judge(10.0) == 2


def test_trust_ends() -> None:
    """A hurried question is trusted for seconds, a peaceful one for longer, and neither a moment beyond that."""
    for is_hurried, trust_s in ((True, PACE.hurried_trust_s), (False, PACE.peaceful_trust_s)):
        election = Election(OWN)
        election.asked_by(1, 10.0, is_hurried)
        assert election.judge(10.0 + trust_s - 0.01) == 1
        assert election.judge(10.0 + trust_s) == OWN


def test_last_question_counts() -> None:
    """A hurried question after a peaceful one shortens the trust: the next one is due at once."""
    election = Election(OWN)
    election.asked_by(1, 10.0, is_hurried=False)
    election.asked_by(1, 11.0, is_hurried=True)
    assert election.judge(11.0 + PACE.hurried_trust_s) == OWN


def test_lower_one_is_given_time_to_begin() -> None:
    """An agent with a lower id that answers is waited for, and leads as soon as it asks."""
    election = Election(OWN)
    election.answered(1, 10.0)
    assert election.judge(10.0 + PACE.wake_trust_s - 0.01) == 1
    election.asked_by(1, 11.0, is_hurried=True)
    assert election.judge(11.0 + PACE.hurried_trust_s - 0.01) == 1


def test_one_that_answers_and_never_asks_is_not_waited_for_twice() -> None:
    """An agent that keeps answering without a question is waited for only once."""
    election = Election(OWN)
    judges = []
    for turn in range(100):
        election.answered(1, 10.0 + turn / 10)
        judges.append(election.judge(10.0 + turn / 10))
    assert judges[:20] == [1] * 20
    assert set(judges[21:]) == {OWN}


def test_one_that_is_back_is_waited_for_again() -> None:
    """Once it has been silent, or has asked, its next answer counts as if it were the first."""
    for come_back in (lambda election: election.silent(1, 20.0), lambda election: election.asked_by(1, 20.0, True)):
        election = Election(OWN)
        election.answered(1, 10.0)
        come_back(election)
        election.answered(1, 50.0)
        assert election.judge(50.0 + PACE.wake_trust_s - 0.01) == 1


def test_failure_of_a_question_from_before_it_asked() -> None:
    """An agent that has asked since a question to it began is trusted, though that question fails."""
    election = Election(OWN)
    election.asked_by(1, 10.5, is_hurried=True)
    election.silent(1, 10.0)
    assert election.judge(11.0) == 1
    election.silent(1, 11.0)
    assert election.judge(11.0) == OWN


def test_answer_shortens_no_trust() -> None:
    """An answer from an agent that asks in peace leaves the trust in it unchanged."""
    election = Election(OWN)
    election.asked_by(1, 10.0, is_hurried=False)
    election.answered(1, 10.5)
    assert election.judge(10.0 + PACE.peaceful_trust_s - 0.01) == 1


_AGENT_ID = st.integers(0, 9)
_HAPPENING = st.one_of(
    st.tuples(st.just("asked_by"), _AGENT_ID, st.booleans()),
    st.tuples(st.just("answered"), _AGENT_ID),
    st.tuples(st.just("silent"), _AGENT_ID),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 5), _HAPPENING), max_size=30))
def test_whatever_happens(happenings: list[tuple[float, tuple[object, ...]]]) -> None:
    """The leader is never above our own agent_id, and when all have been silent for long enough it is our own."""
    election, now = Election(OWN), 0.0
    for pause_s, (name, agent_id, *hurried) in happenings:
        now += pause_s
        if name == "silent":
            election.silent(agent_id, now)  # type: ignore[arg-type]
        else:
            getattr(election, str(name))(agent_id, now, *hurried)
        assert election.judge(now) <= OWN
        assert name != "silent" or election.judge(now) != agent_id or agent_id == OWN
    assert election.judge(now + PACE.peaceful_trust_s) == OWN
