"""The settings of a process, and the actions that some settings list."""

from otel_torchdist.config.accepted import (
    ALL_RANKS,
    TRACE_ID_PLACE,
    Accepted,
    CaptureKernel,
    NumericsMode,
    PageAccess,
    Parameter,
    ReaderHome,
)
from otel_torchdist.config.actions import Action, ActionKind, parse_actions, parse_finding_actions
from otel_torchdist.config.settings import Config

__all__ = [
    "ALL_RANKS",
    "TRACE_ID_PLACE",
    "Accepted",
    "Action",
    "ActionKind",
    "CaptureKernel",
    "Config",
    "NumericsMode",
    "PageAccess",
    "Parameter",
    "ReaderHome",
    "parse_actions",
    "parse_finding_actions",
]
