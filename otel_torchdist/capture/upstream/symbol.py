"""A row of the table of torch's private symbols, and its lookup."""

from __future__ import annotations

import enum
import functools
import logging
import sys
from dataclasses import dataclass
from typing import Any, Final

_logger = logging.getLogger("otel_torchdist")
_ABSENT: Final = object()


class Loss(enum.Enum):
    """The consequence of a missing symbol."""

    RECORDING = "recording stays off"
    FEATURE = "one warning"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, eq=False)
class TorchSymbol:
    """A private or undocumented symbol of torch.

    Attributes:
        owner: The module that has it, or module and class: `torch.nn.parallel.distributed:DistributedDataParallel`.
        name: Name of the attribute.
        reason: Why it is used.
        without: What is lost without it, as a clause that follows `this torch has no …:`.
        loss: How it is reported if torch lacks it.
        since: The oldest tested version of torch that has it. Older versions lack it without a warning.
        until: The newest tested version of torch that has it; '' if the newest one does.
        of_instances: Whether only instances have the attribute, not the class.
        builds: The builds of torch that have it; '' for all of them.
    """

    owner: str
    name: str
    reason: str
    without: str
    loss: Loss = Loss.FEATURE
    since: str = "2.8"
    until: str = ""
    of_instances: bool = False
    builds: str = ""

    @property
    def path(self) -> str:
        """The dotted path, for example `torch.distributed.distributed_c10d._world`."""
        return f"{self.owner.replace(':', '.')}.{self.name}"

    @property
    def module(self) -> str:
        """The name of the module that has it, or that has its class."""
        return self.owner.partition(":")[0]

    @property
    def holder(self) -> Any:
        """The object that has the attribute, or None if torch lacks it or nothing has imported its module."""
        held: Any = sys.modules.get(self.module)
        names = self.owner.partition(":")[2]
        for name in names.split(".") if names else ():
            held = getattr(held, name, None)
        return held

    def find(self) -> Any:
        """Return the object, or None with a warning if this torch lacks it. Its module must have been imported."""
        return self.of(self.holder)

    def of(self, holder: Any, default: Any = None) -> Any:
        """Return the attribute of an object, or a default with a warning if this torch lacks the attribute."""
        value = getattr(holder, self.name, _ABSENT)
        if value is not _ABSENT:
            return value
        self.report()
        return default

    def is_in(self, holder: Any) -> bool:
        """Return whether an object has the attribute. Warn otherwise."""
        return self.of(holder, _ABSENT) is not _ABSENT

    def report_if_missing(self, holder: Any) -> None:
        """Warn if an object lacks the attribute."""
        if not hasattr(holder, self.name):
            self.report()

    def report(self) -> None:
        """Warn that this torch lacks the symbol: once, and only if its version is expected to have it."""
        if self.loss is not Loss.NOTHING and not self.builds and _is_expected(self):
            warn_once(self)


@functools.cache
def warn_once(symbol: TorchSymbol) -> None:
    """Log that torch lacks a symbol. A second call for the symbol does nothing."""
    _logger.warning("this torch has no %s: %s", symbol.path, symbol.without)


def first_missing(*symbols: TorchSymbol) -> TorchSymbol | None:
    """Return the first symbol that this torch lacks, or None. Their modules must have been imported."""
    return next((symbol for symbol in symbols if not hasattr(symbol.holder, symbol.name)), None)


def _is_expected(symbol: TorchSymbol) -> bool:
    """Return whether the table promises the symbol for the installed torch."""
    installed = release_of(str(getattr(sys.modules.get("torch"), "__version__", "")))
    return installed >= release_of(symbol.since) and (not symbol.until or installed <= release_of(symbol.until))


def release_of(version: str) -> tuple[int, ...]:
    """Return major and minor version as numbers: (2, 15) for `2.15.0a0+git1234`."""
    parts = version.split(".")[:2]
    return tuple(int(part) if part.isdigit() else 0 for part in parts)
