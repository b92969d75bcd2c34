"""The launch on the tape: from where a rank looks for its store, once for each group, and with how it failed."""

from __future__ import annotations

from otel_torchdist.tape.layout import How
from tests.support.launch.jobs import Jobs
from tests.support.native.both_kernels import NATIVE_LATER


@NATIVE_LATER
def test_host_of_the_store_has_a_tape_while_it_waits(jobs: Jobs) -> None:
    """A host whose ranks do not come has a tape that says where it waited and how that ended, one for all its tries.

    A group that is created then is one operation, which has begun where the store was looked for.
    """
    job = jobs.run("launches", 1)
    found = job.ranks[0].line()
    first, second = sorted(job.tapes, key=lambda tape: tape.identity.realtime_ns)
    assert found["tapes"] == [str(first.path)] * 2
    assert [operation.raw.how for operation in first.rendezvous] == [How.FAILED] * 2
    assert [operation.raw.sequence for operation in first.rendezvous] == [1, 1]
    assert [operation.failure for operation in first.rendezvous] == found["failures"]
    for operation in first.rendezvous:
        assert operation.name == "init_process_group"
        assert (operation.group.backend, operation.group.ranks) == ("", (0, 1))
        assert operation.group.address.startswith("127.0.0.1:")
    [created] = second.rendezvous
    assert (created.raw.how, created.group.backend, created.group.nth) == (How.CALL, "gloo", 0)
    assert [operation.group for operation in second.operations] == [created.group]
