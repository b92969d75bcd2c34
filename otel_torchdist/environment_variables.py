"""Every environment variable that otel_torchdist reads, and what it means: the user's reference.

Booleans are true only for ``true`` (in any case). Durations are whole milliseconds. An empty value counts as
unset. A value that cannot be used gives one warning, and the default is used instead.
"""

OTEL_PYTHON_TORCHDIST_ENABLED = "OTEL_PYTHON_TORCHDIST_ENABLED"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_ENABLED

Switches the instrumentation on in every process that creates a process group, with no change of code.
Processes that never create one (torchrun's own, DataLoader workers) stay untouched. An invalid value is
reported by the ranks only, when they create their first process group.
Needs torch's entry points: ``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` turns this switch off too.
Default: "false"
"""

OTEL_PYTHON_TORCHDIST_READER = "OTEL_PYTHON_TORCHDIST_READER"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_READER

Where the tapes are read and turned into spans and metrics. ``agent``: in a process of its own, one for a job and
node, which a rank starts and which outlives all of them. ``thread``: in each training process. ``none``: nowhere
until somebody starts ``otel-torchdist agent``, by hand or as a service of the node.
It counts under OTEL_PYTHON_TORCHDIST_ENABLED; ``TorchDistInstrumentor().instrument()`` always means ``thread``,
because providers that a program has made are there only. So do exporters named ``console``, for the agent has none.
Default: "agent"
"""

OTEL_PYTHON_TORCHDIST_AGENT_LINGER = "OTEL_PYTHON_TORCHDIST_AGENT_LINGER"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_AGENT_LINGER

How long the agent that ranks have started stays after the last of them has ended, in milliseconds: for one more
scrape of ``/metrics``, after which it leaves, and for ranks that are started again.
Default: "60000"
"""

OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT = "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT

The age at which an open operation is reported as stalled, in milliseconds; at least 100.
Default: "10000"
"""

OTEL_PYTHON_TORCHDIST_ABORT_HOOKS = "OTEL_PYTHON_TORCHDIST_ABORT_HOOKS"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_ABORT_HOOKS

Lets backends that can (``nccl`` from torch 2.15 on) say that they give up an operation, before they end the process.
The verdict then comes at once, however short the group's timeout, and names the rank that was waited for instead of
those whose backends gave up. Off unless asked for: such a hook is Python, so the backend waits for the GIL before it
ends the process, for ever if native code holds it.
Default: "false"
"""

OTEL_PYTHON_TORCHDIST_STALL_IGNORE = "OTEL_PYTHON_TORCHDIST_STALL_IGNORE"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_STALL_IGNORE

Operations that are never called stalled, however long they take: a comma-separated list of patterns (``*``, ``?``)
that are compared with the operation's name (``barrier``), its group's description (``mesh_eval``), the label of
``record_comm``, and its call site (``evaluate.py:run``). Deaths are told nevertheless.
Default: ""
"""

OTEL_PYTHON_TORCHDIST_COMPARE_CALLS = "OTEL_PYTHON_TORCHDIST_COMPARE_CALLS"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_COMPARE_CALLS

Whether ranks are compared where nothing stalls: what they call, for a dtype or reduce op that differs can give wrong
results without any error, and who comes last. It costs the training nothing. Calls that cause a stall are told anyway.
Default: "true"
"""

OTEL_PYTHON_TORCHDIST_ON_STALL = "OTEL_PYTHON_TORCHDIST_ON_STALL"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_ON_STALL

What is done about a stall beside a warning in the log, once for each, when it has lasted for the time of grace: a
comma-separated list of ``dump`` (evidence of each node as a ``.tar.gz``), ``abort`` (the ranks end with exit code 75,
and with a word for torchelastic, which starts them again), ``callback:module:function`` and ``command:…`` (a command
line, which takes the rest of the text). They are done in this order.
Default: "log"
"""

OTEL_PYTHON_TORCHDIST_ON_STALL_GRACE = "OTEL_PYTHON_TORCHDIST_ON_STALL_GRACE"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_ON_STALL_GRACE

For how many milliseconds a verdict must have stood before anything is done about it.
Default: "30000"
"""

OTEL_PYTHON_TORCHDIST_DUMP_DIR = "OTEL_PYTHON_TORCHDIST_DUMP_DIR"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_DUMP_DIR

The directory for the files of ``dump``, an absolute path. It is made where it is missing.
Default: "/tmp/otel-torchdist-<uid>"
"""

OTEL_PYTHON_TORCHDIST_EXCHANGE = "OTEL_PYTHON_TORCHDIST_EXCHANGE"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_EXCHANGE

Whether the agents of a job's nodes speak with each other, so that a verdict rests on all ranks: over HTTP, on a port of
their own, signed with a secret of the run. Without it each agent judges by the ranks of its node.
Default: "true"
"""

OTEL_PYTHON_TORCHDIST_EXCHANGE_HOST = "OTEL_PYTHON_TORCHDIST_EXCHANGE_HOST"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_EXCHANGE_HOST

The address on which this node's agent listens for those of other nodes. Without it: that of the interface which
``GLOO_SOCKET_IFNAME`` or ``NCCL_SOCKET_IFNAME`` names, else of the one on the way to ``MASTER_ADDR``.
Default: ""
"""

OTEL_PYTHON_TORCHDIST_SPAN_BUDGET = "OTEL_PYTHON_TORCHDIST_SPAN_BUDGET"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_SPAN_BUDGET

The number of spans per second that one rank may export; at least 1. Above it whole steps are left out. The
evidence of a stall is always exported.
Default: "1000"
"""

OTEL_PYTHON_TORCHDIST_TAPE_DIR = "OTEL_PYTHON_TORCHDIST_TAPE_DIR"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_TAPE_DIR

The base directory of the tapes, an absolute path. It must belong to the user and lie in memory (tmpfs).
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

The number of records in a rank's tape, 128 bytes each; from 64 to 1048576. The oldest are overwritten. Fewer, with a
warning, where all tapes of the ranks that run would take more than an eighth of the file system.
Default: "16384"
"""

OTEL_PYTHON_TORCHDIST_OTLP_FILE = "OTEL_PYTHON_TORCHDIST_OTLP_FILE"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_OTLP_FILE

The file to which ``OTEL_TRACES_EXPORTER=torchdist_otlp_json`` appends spans, an absolute path: OTLP JSON, one export
request a line. It may stand beside others: ``otlp,torchdist_otlp_json``.
Default: none
"""

OTEL_PYTHON_TORCHDIST_KEEP_RUNS = "OTEL_PYTHON_TORCHDIST_KEEP_RUNS"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_KEEP_RUNS

The number of job directories of ended runs that are kept for a later look.
Default: "8"
"""

OTEL_PYTHON_TORCHDIST_KEEP_BYTES = "OTEL_PYTHON_TORCHDIST_KEEP_BYTES"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_KEEP_BYTES

The number of bytes that job directories of ended runs may take together.
Default: "268435456" (256 MiB)
"""

OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL = "OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL

For tests only: errors of otel_torchdist itself are raised in the training code instead of being logged.
Default: "false"
"""

OTEL_SDK_DISABLED = "OTEL_SDK_DISABLED"
"""
.. envvar:: OTEL_SDK_DISABLED

OpenTelemetry's own: switches everything off.
Default: "false"
"""

OTEL_PYTHON_DISABLED_INSTRUMENTATIONS = "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"
"""
.. envvar:: OTEL_PYTHON_DISABLED_INSTRUMENTATIONS

OpenTelemetry's own: a comma-separated list of instrumentations that stay off, or ``*`` for all. The name of
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
