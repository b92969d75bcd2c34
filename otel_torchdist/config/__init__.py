"""The settings of a process, and the actions that some settings list."""

from otel_torchdist.config.accepted import (
    ALL_RANKS,
    TRACE_ID_PLACEHOLDER,
    Accepted,
    CaptureKernel,
    NumericsMode,
    PageAccess,
    Parameter,
    ReaderHome,
)
from otel_torchdist.config.actions import Action, ActionKind, parse_actions, parse_finding_actions
from otel_torchdist.config.declared_file import DeclaredFile, FileOrigin, declared_files
from otel_torchdist.config.settings import Config
from otel_torchdist.config.sources import has_console

__all__ = [
    "ALL_RANKS",
    "TRACE_ID_PLACEHOLDER",
    "Accepted",
    "Action",
    "ActionKind",
    "CaptureKernel",
    "Config",
    "DeclaredFile",
    "FileOrigin",
    "NumericsMode",
    "PageAccess",
    "Parameter",
    "ReaderHome",
    "declared_files",
    "has_console",
    "parse_actions",
    "parse_finding_actions",
]
