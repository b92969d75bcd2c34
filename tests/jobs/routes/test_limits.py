"""What is not on a tape, because nothing is communicated or it cannot be seen, and what is there with a reservation."""

from __future__ import annotations

import pytest

from otel_torchdist.capture.core.groups.worlds import SHOWS_STORES
from tests.jobs.routes.twins import Twins


@pytest.mark.parametrize("route", ["meta_tensors", "fake_tensors"])
def test_pretended(twins: Twins, route: str) -> None:
    """Meta and fake tensors pass the dispatcher and communicate nothing: they are not operations."""
    for taken in twins.of("unseen", 2).routes[route]:
        assert taken.dispatched
        assert not taken.operations


def test_direct_backend_calls(twins: Twins) -> None:
    """Calls made directly to a backend, bypassing c10d, communicate and go unseen, as the documentation states."""
    twin = twins.of("unseen", 2)
    for taken in twin.routes["direct_backend_calls"]:
        assert taken.gloo
        assert not taken.operations
    # What comes after is seen as usual.
    assert [[operation.name for operation in tape.operations] for tape in twin.tapes] == [["barrier"]] * 2


def test_groups_of_before(twins: Twins) -> None:
    """Groups created before we were switched on are unaligned; one created later is aligned, and kept distinct."""
    twin = twins.of("early", 3)
    for rank, tape in enumerate(twin.tapes):
        groups = {operation.group for operation in tape.operations}
        aligned = {group.description: (group.aligned, group.nth) for group in groups}
        pairs = {"old": (False, 0), "new": (True, 1)}
        assert aligned == {"default_pg": (False, 0), **(pairs if rank != 1 else {})}


def test_group_of_unknown_members(twins: Twins) -> None:
    """Of a group that torch does not list only the size is known: its numbers are not compared across ranks."""
    twin = twins.of("groups", 4)
    for rank, taken in enumerate(twin.routes["made_by_hand"]):
        sizes = [(len(operation.group.ranks), operation.group.aligned) for operation in taken.operations]
        assert sizes == ([(4, SHOWS_STORES), (2, False)] if rank in (0, 2) else [(4, SHOWS_STORES)])
