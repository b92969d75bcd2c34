"""The exceptions of this package, each in the module that raises it; all derive from `TorchDistError`.

* TorchDistError
  Commands print these:
  + TapeError            errors                             a tape or its directory cannot be created or read
  + SeveralRunsError     node.job.runs.runs                 the first digits of a run's id match more than one run
  + FolderError          cli.export.flight_recorder         dumps cannot be written, or would replace files of others
  + OutputError          system.files.outputs               a file cannot be written, or would replace one of others
  + ParquetError         cli.export.parquet                 tables cannot be written, or would be among files of others
  + NotReproducibleError analysis.reproducer.script         no script can show what has happened
  + AgentError           agent.job                          the tapes of a job directory cannot be read by this process
  + ProfileError         node.job.requests.profile_file     a rank does not answer with a profile
  + NativeError          native.library                     the native library cannot be built, or not be used here
  + NoToolError          native.build                       a compiler, or torch, is not installed
  These are handled where they arise:
  + NoLibraryError       native.library                     there is no native library for this torch
  + DamagedSegmentError  sources.archive.columns            a part of an archive is damaged
  + UnreadableError      sources.flight.reading.limits      a file that may be a dump, or an archive, cannot be read
  + TooLargeError        system.files.unpacking             a file unpacks to more than is read
  + PickleError          sources.flight.reading.pickles     a pickle is damaged, or holds more than plain data
  + DumpError            sources.flight.reading.decoding    a file is no dump of a flight recorder, or is damaged
  + NotADumpError        sources.flight.reading.decoding    a file is sound, and something else
  + TraceError           sources.profiles.reading.document  a file is no trace of a profiler, or is damaged
  + DecodingError        tape.names.decoding                what another process has written is not what was expected
  + DriverError          capture.core.cuda.driver           a call of the CUDA runtime failed
  + ExportError          telemetry.export.queued_sink       an exporter did not accept spans
  + ChildrenAwaitedError agent.launch.detached              the program would reap an agent that is started now
  + ChildError           agent.path_watch.child             the process that looks for a critical path has failed
  + NoAnswerError        agent.exchange.client              an agent of another node did not answer
  + HeadTooLargeError    show.serving.clients               a client's request line and headers are too large
  + WireError            agent.exchange.wire                a message of another agent cannot be decoded

None of them reaches a training: our code runs under `guard` there. So `otel_torchdist` does not export them; who calls
the modules above directly can catch `TorchDistError`.
"""

from __future__ import annotations


class TorchDistError(Exception):
    """Base class of all exceptions of this package."""


class TapeError(TorchDistError):
    """A tape, or the directory for it, cannot be created or read; the message names it and gives the reason."""
