"""Every environment variable that otel_torchdist reads, and what it means: the user's reference.

Booleans are true only for ``true`` (in any case). Durations are whole milliseconds. An empty value counts as
unset. For an invalid value the default is used, with one warning.
"""

OTEL_PYTHON_TORCHDIST_ENABLED = "OTEL_PYTHON_TORCHDIST_ENABLED"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_ENABLED

Enables the instrumentation in every process that creates a process group, without code changes. Processes that
never create one (torchrun itself, DataLoader workers) are not affected. An invalid value is reported only by the
ranks, when they create their first process group.
Requires torch's entry points: ``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` disables this switch too.
Default: "false"
"""

OTEL_PYTHON_TORCHDIST_READER = "OTEL_PYTHON_TORCHDIST_READER"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_READER

Where the tapes are read and turned into spans and metrics. ``agent``: in a separate process, one per job and node,
which a rank starts and which outlives all ranks. ``thread``: in each training process. ``none``: nowhere until
``otel-torchdist agent`` is started, by hand or as a service of the node.
Applies with OTEL_PYTHON_TORCHDIST_ENABLED; with ``TorchDistInstrumentor().instrument()`` ``agent`` means ``thread``,
because providers created by a program exist only in that process. Exporters named ``console`` imply ``thread`` too,
because the agent has no console.
Default: "agent"
"""

OTEL_PYTHON_TORCHDIST_CAPTURE = "OTEL_PYTHON_TORCHDIST_CAPTURE"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_CAPTURE

What records the calls: ``auto`` (the native library if ``otel-torchdist build-native`` has built one for this torch,
else Python), ``native`` (the same, with a warning if there is none) or ``python``. Both record the same; the library
takes a tenth of the time, and does not need the GIL. One that is truncated, or that other users can write to, is not
loaded, with a warning.
Default: "auto"
"""

OTEL_PYTHON_TORCHDIST_AGENT_LINGER = "OTEL_PYTHON_TORCHDIST_AGENT_LINGER"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_AGENT_LINGER

How long an agent that ranks have started keeps running after the last of them has ended, in milliseconds: for one
more scrape of ``/metrics``, after which it exits, and for ranks that are restarted.
Default: "60000"
"""

OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT = "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT

The age at which an open operation is reported as stalled, in milliseconds; at least 100.
Default: "10000"
"""

OTEL_PYTHON_TORCHDIST_HOOKS = "OTEL_PYTHON_TORCHDIST_HOOKS"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_HOOKS

Your functions that are called in each rank around its operations, with their tensors: a comma-separated list of
``module:name``, each a ``Hooks`` or a function that takes an ``OperationCall`` and is called before the operation. They
can set breakpoints, check values, save or change tensors. What they raise goes to the program. With hooks, calls are
recorded in Python. What cannot be imported is left out, with a warning. See ``docs/hooks.md``.
Default: ""
"""

OTEL_PYTHON_TORCHDIST_NUMERICS = "OTEL_PYTHON_TORCHDIST_NUMERICS"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_NUMERICS

Whether the values in operations' tensors are looked at. ``sampled``: range, mean, norm, shares of zeros and subnormal
numbers of the inputs of one operation in 64 (see OTEL_PYTHON_TORCHDIST_NUMERICS_EVERY), and checksums of outputs that
must be equal on all ranks. ``all``: also, of every operation, whether its inputs are finite, so that the rank that
brings the first NaN is named. Tensors on CUDA devices are looked at without synchronising. With it, calls are recorded
in Python.
Default: "off"
"""

OTEL_PYTHON_TORCHDIST_NUMERICS_EVERY = "OTEL_PYTHON_TORCHDIST_NUMERICS_EVERY"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_NUMERICS_EVERY

One in so many operations is sampled, the same on all ranks; of messages above 1 MiB as many bytes. Must be the same on
all ranks.
Default: "64"
"""

OTEL_PYTHON_TORCHDIST_NUMERICS_RANKS = "OTEL_PYTHON_TORCHDIST_NUMERICS_RANKS"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_NUMERICS_RANKS

Which ranks look at their tensors: ``all``, or a list of global ranks such as ``0,8-15``. The others take no statistics
and no checksums; findings then say which ranks are not known, and name no rank as the first. Must be the same on all
ranks.
Default: "all"
"""

OTEL_PYTHON_TORCHDIST_COMPARE_PARAMETERS = "OTEL_PYTHON_TORCHDIST_COMPARE_PARAMETERS"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_COMPARE_PARAMETERS

Checksums of the parameters that replicas must have alike (models of DistributedDataParallel, replicated DTensors) are
compared between ranks before each so-many-th step, without a collective; 0 for never. Must be the same on all ranks.
Tensors on the CPU only, so far.
Default: "0"
"""

OTEL_PYTHON_TORCHDIST_SYNCHRONIZE = "OTEL_PYTHON_TORCHDIST_SYNCHRONIZE"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_SYNCHRONIZE

For debugging only: waits for the device before and after each collective, so that its time is its own and not that of
what was enqueued before. This ends the overlap of computation and communication, and distorts what it measures. Never
around sends, receives and coalesced operations, nor while a graph is captured. It does nothing on the CPU, where calls
are exact.
Default: "false"
"""

OTEL_PYTHON_TORCHDIST_ABORT_HOOKS = "OTEL_PYTHON_TORCHDIST_ABORT_HOOKS"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_ABORT_HOOKS

Lets backends that can (``nccl`` from torch 2.15 on) report that they give up an operation, before they end the
process. The verdict then comes at once, however short the group's timeout, and names the rank that was waited for
instead of those whose backends gave up. Off by default: such a hook is Python, so the backend waits for the GIL
before it ends the process, forever if native code holds it.
Default: "false"
"""

OTEL_PYTHON_TORCHDIST_IDLE_AFTER = "OTEL_PYTHON_TORCHDIST_IDLE_AFTER"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_IDLE_AFTER

After so many stall timeouts in which no rank of a job has called an operation, and none has worked, a finding says
where all of them stand; never before ten times the longest time that this job took to its next call. 0 for no such
findings.
Default: "6"
"""

OTEL_PYTHON_TORCHDIST_STALL_IGNORE = "OTEL_PYTHON_TORCHDIST_STALL_IGNORE"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_STALL_IGNORE

Operations that are never reported as stalled, however long they take: a comma-separated list of patterns (``*``,
``?``) that are matched against the operation's name (``barrier``), its group's description (``mesh_eval``), what it is
for (``FSDP encoder.*``, or the label of ``record_comm``), its call site (``evaluate.py:run``), and the function
of a package that was called there (``torchmetrics.*``). Deaths are still
reported.
Default: ""
"""

OTEL_PYTHON_TORCHDIST_COMPARE_CALLS = "OTEL_PYTHON_TORCHDIST_COMPARE_CALLS"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_COMPARE_CALLS

Whether ranks are compared while nothing stalls: what they call, because a dtype or reduce op that differs can give
wrong results without any error, and which rank comes last. It costs the training nothing. Mismatched calls that cause
a stall are reported in any case.
Default: "true"
"""

OTEL_PYTHON_TORCHDIST_CRITICAL_PATH = "OTEL_PYTHON_TORCHDIST_CRITICAL_PATH"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_CRITICAL_PATH

Whether the agent that judges a run finds the critical path of its newest steps, across all nodes, every 30 s or less
often: in a process of low priority that takes at most 1 % of a core. It reports what makes steps a tenth longer or
more. Without an agent (``OTEL_PYTHON_TORCHDIST_READER=thread``) there is none.
Default: "true"
"""

OTEL_PYTHON_TORCHDIST_ANNOUNCE = "OTEL_PYTHON_TORCHDIST_ANNOUNCE"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_ANNOUNCE

Whether a stall or a crash is announced on the job's standard error, once for the whole job: the verdict, and the
command that shows more, in lines that begin with ``otel_torchdist:``. Where the job's standard error cannot be written
to from outside, a rank logs them, or the launcher writes them. A launcher whose ranks have failed waits up to a second
for them, or up to three while the agent is still starting.
Default: "true"
"""

OTEL_PYTHON_TORCHDIST_ON_STALL = "OTEL_PYTHON_TORCHDIST_ON_STALL"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_ON_STALL

Actions on a stall in addition to a warning in the log, once per stall, when it has lasted for the grace period: a
comma-separated list of ``dump`` (evidence from each node as a ``.tar.gz``), ``rescue:module:function`` (each rank calls
a function of yours, which saves its state), ``abort`` (the ranks end with exit code 75, and with a message for
torchelastic, which restarts them), ``callback:module:function`` and ``command:…`` (a command line, which takes the rest
of the text). They are run in the order of the list. Where a run has several nodes, their agents trust each other by a
secret in the job's store, which has no password: with ``abort``, anyone who can connect to ``MASTER_PORT`` can read it
and have ranks ended. Restrict that port to the job's nodes, or set OTEL_PYTHON_TORCHDIST_EXCHANGE to ``false``.
Default: "log"
"""

OTEL_PYTHON_TORCHDIST_ON_FINDING = "OTEL_PYTHON_TORCHDIST_ON_FINDING"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_ON_FINDING

Actions on a finding that stalls nothing (calls that do not match, stragglers, values that are not finite, results that
differ), in the form of OTEL_PYTHON_TORCHDIST_ON_STALL without ``rescue``, at once and once per finding, at most 64
times. They run where the finding was made, ``dump`` and ``abort`` for the ranks of that node; only you know whether a
NaN is fatal, so ``abort`` is never a default.
Default: "log"
"""

OTEL_PYTHON_TORCHDIST_ON_STALL_GRACE = "OTEL_PYTHON_TORCHDIST_ON_STALL_GRACE"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_ON_STALL_GRACE

How long a verdict must have stood before the actions on a stall are run, in milliseconds.
Default: "30000"
"""

OTEL_PYTHON_TORCHDIST_RESCUE_TIMEOUT = "OTEL_PYTHON_TORCHDIST_RESCUE_TIMEOUT"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_RESCUE_TIMEOUT

How long the function of ``rescue`` in OTEL_PYTHON_TORCHDIST_ON_STALL may take in each rank, in milliseconds. What comes
after it in the list waits as long.
Default: "60000"
"""

OTEL_PYTHON_TORCHDIST_PREEMPTION_SIGNALS = "OTEL_PYTHON_TORCHDIST_PREEMPTION_SIGNALS"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_PREEMPTION_SIGNALS

Signals by which a scheduler announces that it will end the job, such as ``SIGTERM,SIGUSR1``, a comma-separated list. If
your program has a handler for one of them, its arrival is recorded at once, even while the handler waits for a
collective to return; a death after it is then no fault of the rank. It uses the interpreter's wakeup descriptor
(``signal.set_wakeup_fd``), of which there is one in a process.
Default: ""
"""

OTEL_PYTHON_TORCHDIST_DUMP_DIR = "OTEL_PYTHON_TORCHDIST_DUMP_DIR"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_DUMP_DIR

The directory for the files of ``dump``, an absolute path. It is created if missing.
Default: "/tmp/otel-torchdist-<uid>"
"""

OTEL_PYTHON_TORCHDIST_EXCHANGE = "OTEL_PYTHON_TORCHDIST_EXCHANGE"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_EXCHANGE

Whether the agents of a job's nodes exchange data, so that a verdict is based on all ranks: over HTTP, on a port of
their own, signed with a secret of the run. The secret is in the job's store: anyone who can connect to ``MASTER_PORT``
can read it, and forge verdicts and the actions on them. Without the exchange each agent judges from the ranks of its
own node.
Default: "true"
"""

OTEL_PYTHON_TORCHDIST_EXCHANGE_HOST = "OTEL_PYTHON_TORCHDIST_EXCHANGE_HOST"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_EXCHANGE_HOST

The address on which this node's agent listens for those of other nodes. If empty: that of the interface named by
``GLOO_SOCKET_IFNAME`` or ``NCCL_SOCKET_IFNAME``, else of the interface on the route to ``MASTER_ADDR``.
Default: ""
"""

OTEL_PYTHON_TORCHDIST_SPAN_BUDGET = "OTEL_PYTHON_TORCHDIST_SPAN_BUDGET"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_SPAN_BUDGET

The number of spans per second that one rank may export; at least 1. Above it, whole steps are left out. The
evidence of a stall is always exported.
Default: "1000"
"""

OTEL_PYTHON_TORCHDIST_TAPE_DIR = "OTEL_PYTHON_TORCHDIST_TAPE_DIR"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_TAPE_DIR

The base directory of the tapes, an absolute path. It must belong to the user and be in memory (tmpfs). If the default
belongs to another user, a directory beside it is used, with one warning.
Default: "/dev/shm/otel-torchdist-<uid>"
"""

OTEL_PYTHON_TORCHDIST_TAPE_ON_DISK = "OTEL_PYTHON_TORCHDIST_TAPE_ON_DISK"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_TAPE_ON_DISK

Allows a base directory that is not in memory. The kernel's write-back can then hold up the training thread.
Default: "false"
"""

OTEL_PYTHON_TORCHDIST_TAPE_RECORDS = "OTEL_PYTHON_TORCHDIST_TAPE_RECORDS"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_TAPE_RECORDS

The number of records in a rank's tape, 128 bytes each; from 64 to 1048576. The oldest are overwritten. It is reduced,
with a warning, if the tapes of all running ranks would take more than an eighth of the file system.
Default: "16384"
"""

OTEL_PYTHON_TORCHDIST_OTLP_FILE = "OTEL_PYTHON_TORCHDIST_OTLP_FILE"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_OTLP_FILE

The file to which ``OTEL_TRACES_EXPORTER=torchdist_otlp_json`` appends spans, an absolute path: OTLP JSON, one export
request per line. It can be combined with other exporters: ``otlp,torchdist_otlp_json``.
Default: none
"""

OTEL_PYTHON_TORCHDIST_MACHINE = "OTEL_PYTHON_TORCHDIST_MACHINE"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_MACHINE

Whether the agent reads every 5 s what its machine shows beside a verdict: pressure on memory and storage (PSI), lost
InfiniBand links, and GPUs if ``nvidia-ml-py`` is installed (``pip install nvidia-ml-py``). ``torchdist_rank_info`` says
then on which node and GPU each rank runs. Without an agent (``OTEL_PYTHON_TORCHDIST_READER=thread``) nothing of it is
read.
Default: "true"
"""

OTEL_PYTHON_TORCHDIST_DESCRIBE_LAUNCH = "OTEL_PYTHON_TORCHDIST_DESCRIBE_LAUNCH"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_DESCRIBE_LAUNCH

Whether the command line of a rank and the git commit of its program become resource attributes. Values that look like
secrets are replaced by ``***``, by the names of their options (token, password, key, secret) and by how they begin; no
such rule finds every secret.
Default: "false"
"""

OTEL_PYTHON_TORCHDIST_KEEP_RUNS = "OTEL_PYTHON_TORCHDIST_KEEP_RUNS"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_KEEP_RUNS

The number of job directories of ended runs that are kept for later analysis.
Default: "8"
"""

OTEL_PYTHON_TORCHDIST_KEEP_BYTES = "OTEL_PYTHON_TORCHDIST_KEEP_BYTES"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_KEEP_BYTES

The number of bytes that the job directories of ended runs may take in total.
Default: "268435456" (256 MiB)
"""

OTEL_PYTHON_TORCHDIST_ARCHIVE = "OTEL_PYTHON_TORCHDIST_ARCHIVE"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_ARCHIVE

The directory into which whole runs are archived, an absolute path, on a disk or a shared file system: several nodes
and jobs can share it. Whatever reads the tapes writes there what their rings overwrite, about 12 bytes an operation.
If empty: nowhere.
Default: ""
"""

OTEL_PYTHON_TORCHDIST_ARCHIVE_BYTES = "OTEL_PYTHON_TORCHDIST_ARCHIVE_BYTES"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_ARCHIVE_BYTES

The number of bytes that the archive of one run may take for each node; at least 1048576. Beyond it the oldest
segments are removed. Archives of ended runs are never removed.
Default: "1073741824" (1 GiB)
"""

OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL = "OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL

For tests only: errors of otel_torchdist itself are raised in the training code instead of being logged.
Default: "false"
"""

OTEL_PYTHON_TORCHDIST_PAGE = "OTEL_PYTHON_TORCHDIST_PAGE"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_PAGE

Who may see the live page, which is served at ``/`` on the port of ``/metrics``. ``loopback``: users of this machine,
on its loopback addresses; each sees the jobs of their own, root sees all. ``on``: everyone who reaches that port, on
the address set by OTEL_EXPORTER_PROMETHEUS_HOST; the page shows stacks, file names and host names. ``off``: there is
no page. ``/metrics`` is the same in all three cases.
Default: "loopback"
"""

OTEL_PYTHON_TORCHDIST_TRACE_URL = "OTEL_PYTHON_TORCHDIST_TRACE_URL"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_TRACE_URL

The address of a trace in your tracing tool, for links on the live page; ``{trace_id}`` in it is replaced by the id:
``http://localhost:16686/trace/{trace_id}`` for a Jaeger on this machine. Without it the page shows the id only.
Default: ""
"""

OTEL_SDK_DISABLED = "OTEL_SDK_DISABLED"
"""
.. envvar:: OTEL_SDK_DISABLED

OpenTelemetry's own: disables everything.
Default: "false"
"""

OTEL_PYTHON_DISABLED_INSTRUMENTATIONS = "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"
"""
.. envvar:: OTEL_PYTHON_DISABLED_INSTRUMENTATIONS

OpenTelemetry's own: a comma-separated list of instrumentations that are disabled, or ``*`` for all. The name of
this one is ``torch_distributed``.
Default: ""
"""

OTEL_EXPORTER_PROMETHEUS_HOST = "OTEL_EXPORTER_PROMETHEUS_HOST"
"""
.. envvar:: OTEL_EXPORTER_PROMETHEUS_HOST

OpenTelemetry's own: the address on which ``/metrics`` is served.
Default: "localhost"
"""

OTEL_EXPORTER_PROMETHEUS_PORT = "OTEL_EXPORTER_PROMETHEUS_PORT"
"""
.. envvar:: OTEL_EXPORTER_PROMETHEUS_PORT

OpenTelemetry's own: the port on which ``/metrics`` is served, from 0 to 65535; 0 takes any free port.
Default: "9464"
"""
