"""Records the launch, the creation of the default group, from the moment when ranks connect to their store.

The rank that hosts the store waits for all others before torch creates the group. So the tape begins at the connection,
and the open operation continues until the group exists.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, parse_qsl, urlsplit

from otel_torchdist import guard
from otel_torchdist.capture.core.calls.backends import milliseconds_of
from otel_torchdist.capture.core.groups.rendezvous import NOT_COUNTED, GroupEvents, Rendezvous
from otel_torchdist.capture.core.intervals import frames_by_thread
from otel_torchdist.capture.core.torch_api import c10d, without_prefixes
from otel_torchdist.model.names import DEFAULT_DESCRIPTION, INIT_PROCESS_GROUP

MAX_ADDRESS: Final = 200
"""Maximum length of an address."""


class RendezvousParameters(NamedTuple):
    """The rendezvous of the default group, from its URL and the environment.

    torch parses the URL in the same function that connects to the store, or hosts it and waits for all others. So we
    parse it ourselves.

    Attributes:
        address: Address of the store: `node0:29500`, the path of a file, or `scheme://host` of a custom handler.
        timeout_ms: Timeout of the store in milliseconds; 0 if unknown.
    """

    rank: int
    world_size: int
    address: str
    timeout_ms: int


def parse_rendezvous(url: Any, rank: Any = -1, world_size: Any = -1, **kwargs: Any) -> RendezvousParameters | None:
    """Parse the arguments of torch's `rendezvous`. Return None if torch would reject them.

    Raises:
        ValueError: A number or the URL cannot be parsed.
    """
    parts = urlsplit(str(url))
    query: dict[str, Any] = dict(parse_qsl(parts.query))
    rank, size = int(query.get("rank", rank)), int(query.get("world_size", world_size))
    if parts.scheme == "env":
        rank = int(os.environ.get("RANK", "-1")) if rank < 0 else rank
        size = int(os.environ.get("WORLD_SIZE", "-1")) if size < 0 else size
    if rank < 0 or size < 1:
        return None
    return RendezvousParameters(rank, size, _address(parts)[:MAX_ADDRESS], milliseconds_of(kwargs.get("timeout")))


def _address(parts: SplitResult) -> str:
    """Return the address in a URL, without its user and query, which may be secret."""
    host = parts.netloc.rpartition("@")[2]
    match parts.scheme:
        case "env":
            return f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}"
        case "tcp":
            return host
        case "file":
            return host + parts.path
        case scheme:
            return f"{scheme}://{host}"


def address_of(store: Any) -> str:
    """Return the address of a store that the program made; '' if unknown."""
    store = without_prefixes(store)
    if hasattr(store, "host") and hasattr(store, "port"):
        return f"{store.host}:{store.port}"[:MAX_ADDRESS]
    return str(getattr(store, "path", ""))[:MAX_ADDRESS]


class Launch:
    """The newest launch of this process."""

    def __init__(self, events: GroupEvents) -> None:
        self._newest: Rendezvous | None = None
        self._events = events

    def enter(self, rendezvous: Rendezvous, parameters: RendezvousParameters | None) -> None:
        """Begin a tape. A retry after an error continues the tape of the previous attempt."""
        if parameters is None:
            return
        before, recorder = self._newest, self._events.current_recorder()
        if (
            recorder is not None
            and before is not None
            and before.recorder is recorder
            and not before.has_joined
            and recorder.belongs_to(parameters.rank, parameters.world_size)
        ):
            if before.nth != NOT_COUNTED:  # the retry gets the number of the first attempt, as on the other ranks
                recorder.forget_group(before.ranks, before.nth)
        else:
            recorder = self._events.default_group_begins(parameters.rank, parameters.world_size)
        if recorder is not None:
            self._newest = rendezvous
            ranks, address = tuple(range(parameters.world_size)), parameters.address
            rendezvous.enter(
                recorder, INIT_PROCESS_GROUP, ranks, "", DEFAULT_DESCRIPTION, "", parameters.timeout_ms, address=address
            )

    def take(self) -> Rendezvous | None:
        """Return this thread's open launch, or None."""
        newest = self._newest
        if newest is None or newest.is_over or newest.thread != threading.get_native_id():
            return None
        return newest if newest.recorder is self._events.current_recorder() else None

    def beat(self) -> None:
        """End a launch whose thread has left torch's code by an exception, for example from a signal handler."""
        newest = self._newest
        if newest is None or newest.is_over or newest.recorder is not self._events.current_recorder():
            return
        if not _is_inside(next(frames_by_thread()).get(newest.python_thread)):
            newest.failed(RuntimeError())  # without effect if the launch has ended meanwhile


def _is_inside(frame: FrameType | None) -> bool:
    """Return whether a thread is in torch's function that creates the default group.

    Libraries that create standalone process groups have functions of the same name, which also call `rendezvous`.
    """
    while frame is not None and not (frame.f_code.co_name == INIT_PROCESS_GROUP and frame.f_globals is vars(c10d)):
        frame = frame.f_back
    return frame is not None


def follow_rendezvous(original: Callable[..., Any], launch: Launch) -> Callable[..., Any]:
    """Wrap torch's `rendezvous`, which yields the store. The launch begins with the first iteration."""

    @functools.wraps(original)
    def rendezvous(*args: Any, **kwargs: Any) -> Any:
        return _StoreIterator(original(*args, **kwargs), lambda: parse_rendezvous(*args, **kwargs), launch)

    return rendezvous


class _StoreIterator:
    """The iterator of the wrapped `rendezvous`. Closing a generator would lose a signal handler's exception."""

    def __init__(
        self, iterator: Iterator[Any], parameters: Callable[[], RendezvousParameters | None], launch: Launch
    ) -> None:
        self._iterator = iterator
        self._parameters = parameters
        self._launch = launch

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        rendezvous = Rendezvous()
        try:
            with guard.guarded("launch"):
                if _is_inside(sys._getframe()):  # pyright: ignore[reportPrivateUsage]  # `inspect` uses it, too
                    self._launch.enter(rendezvous, self._parameters())
            return next(self._iterator)
        except BaseException as error:
            with guard.guarded("launch"):
                rendezvous.failed(error)
            raise
