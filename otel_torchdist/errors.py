"""The exceptions of this package. Each is defined in the module that raises it, and derives from `TorchDistError`.

* TorchDistError
  Commands print these:
  + TapeError             errors                             a tape or its directory cannot be created or read
  + OtherFormatError      formats                            a tape, archive or bundle has another format
  + RunError              errors                             a run cannot be found or read, or lacks the requested data
  + SeveralRunsError      node.job.runs.runs                 the first digits of a run's id match more than one run
  + FolderError           cli.export.flight_recorder         dumps cannot be written, or would replace other files
  + OutputError           system.files.outputs               a file cannot be written, or would replace another file
  + ParquetError          cli.export.parquet                 tables cannot be written, or the folder has other files
  + NotReproducibleError  analysis.reproducer.script         no script can reproduce the problem
  + AgentError            agent.job                          the tapes of a job directory cannot be read by this process
  + ProfileError          node.job.requests.profile_file     a rank does not send a profile
  + NativeError           native.library                     the native library is missing or unusable
  + NoToolError           native.build                       a compiler, or torch, is not installed
  These are handled where they arise:
  + NoLibraryError        native.library                     there is no native library for this torch
  + DamagedSegmentError   sources.archive.columns            a part of an archive is damaged
  + UnreadableError       sources.flight.reading.limits      a possible dump or archive cannot be read
  + BundleTooLargeError   sources.bundles.folder             a bundle of evidence exceeds the bound of its directory
  + TooLargeError         system.files.unpacking             a file unpacks to more than the limit
  + PickleError           sources.flight.reading.pickles     a pickle is damaged, or holds more than plain data
  + DumpError             sources.flight.reading.decoding    a file is not a flight recorder's dump, or is damaged
  + NotADumpError         sources.flight.reading.decoding    a file is intact, but not a dump
  + TraceError            sources.profiles.reading.document  a file is not a profiler's trace, or is damaged
  + DecodingError         tape.names.decoding                another process has written invalid data
  + DriverError           capture.core.cuda.driver           a call of the CUDA runtime failed
  + ExportError           telemetry.export.queued_sink       an exporter did not accept spans
  + ChildrenAwaitedError  agent.launch.detached              the program would reap a new agent
  + ChildError            agent.path_watch.child             the critical path's process has failed
  + NoAnswerError         agent.exchange.client              an agent of another node did not answer
  + OtherProtocolError    agent.exchange.client              an agent of another node has another protocol
  + HeadTooLargeError     show.serving.clients               a client's request line and headers are too large
  + WireError             agent.exchange.wire                a message of another agent cannot be decoded

In training code, our code runs under `guard`, so none of these reaches it, and `otel_torchdist` does not export them.
Code that calls the modules above directly can catch `TorchDistError`.
"""

from __future__ import annotations

from collections.abc import Iterable


class TorchDistError(Exception):
    """Base class of all exceptions of this package."""


class TapeError(TorchDistError):
    """A tape or its directory cannot be created or read. The message names it and gives the reason."""


class RunError(TorchDistError):
    """A run cannot be found or read, or does not record the requested data. The message gives the reason.

    Attributes:
        warnings: Files that could not be read, with reasons.
    """

    def __init__(self, message: str, warnings: Iterable[str] = ()) -> None:
        """Create the error with its message."""
        super().__init__(message)
        self.warnings = tuple(warnings)
