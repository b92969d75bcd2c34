"""Abort hooks of backends: installed only on request, recorded once, and removed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import ProcessGroup

from otel_torchdist.capture.core.requests.abort import HOOK, AbortHooks
from otel_torchdist.model.kinds import TapeState
from otel_torchdist.model.names import GIVEN_UP
from tests.support.tapes.own_tape import OwnTape


class Aborting(ProcessGroup):
    """A group whose backend has abort hooks like nccl2's. No CPU backend has them."""

    hooks: dict[int, Callable[[], None]]
    supports_abort_hooks: Any = True

    def register_abort_hook(self, hook_id: int, hook: Callable[[], None]) -> None:
        """Keep the hook."""
        self.hooks[hook_id] = hook

    def unregister_abort_hook(self, hook_id: int) -> None:
        """Drop the hook."""
        del self.hooks[hook_id]


@pytest.fixture
def rank(memory: Path) -> Iterator[OwnTape]:
    """A rank with a tape."""
    with contextlib.closing(OwnTape(memory)) as one:
        yield one


@pytest.fixture
def group() -> Aborting:
    """A group."""
    make: Any = Aborting
    made = make(0, 2)
    made.hooks = {}
    return made


def said(rank: OwnTape) -> str:
    """Return the rank's end as recorded on the tape."""
    return rank.reader.names.text(rank.reader.status().failure) or ""


def test_not_asked_for(rank: OwnTape, group: Aborting) -> None:
    """No hook is registered by default, because a hook in Python waits for the GIL."""
    AbortHooks(False).attach(rank.recorder, group)
    assert group.hooks == {}


def test_a_backend_without(rank: OwnTape, group: Aborting) -> None:
    """Backends without hooks, and versions of torch without support for them, are left unchanged."""
    plain: Any = ProcessGroup
    group.supports_abort_hooks = False
    AbortHooks(True).attach(rank.recorder, group)
    AbortHooks(True).attach(rank.recorder, plain(0, 2))
    assert group.hooks == {}


def test_the_announcement(rank: OwnTape, group: Aborting) -> None:
    """The hook records an abort once, however often it runs, while the tape continues.

    A regular end clears the record.
    """
    hooks = AbortHooks(True)
    hooks.attach(rank.recorder, group)
    hooks.attach(rank.recorder, group)
    assert [*group.hooks] == [HOOK]
    assert said(rank) == ""
    for _ in range(2):
        group.hooks[HOOK]()
    assert (said(rank), rank.reader.status().state) == (GIVEN_UP, TapeState.RUNNING)
    rank.recorder.tape.finish(TapeState.FINISHED)
    assert said(rank) == ""


def test_taken_out(rank: OwnTape, group: Aborting) -> None:
    """Our hooks are removed at the end of the tape. Hooks of other code stay."""
    hooks = AbortHooks(True)
    group.hooks[7] = lambda: None
    hooks.attach(rank.recorder, group)
    hooks.ends(rank.recorder)
    assert [*group.hooks] == [7]
    hooks.ends(rank.recorder)
