"""The environment variables that otel_torchdist reads, with their meanings: the user's reference.

Booleans are true only for ``true`` (in any case). Durations are whole milliseconds. An empty value counts as
unset. An invalid value gives one warning, and counts as unset.

Settings come from four sources. The first that has a setting decides:

- the environment variable
- the file in OTEL_CONFIG_FILE (OpenTelemetry's declarative configuration)
- the file on the node (see OTEL_PYTHON_TORCHDIST_CONFIG)
- the default

Both files are YAML or JSON, with the same keys. Our settings are below ``instrumentation/development``, ``python``,
``torch_distributed``. A key is the end of the variable's name in lower case: ``stall_timeout: 30000``. Listing
``torch_distributed`` switches recording on, unless ``enabled: false`` is below it. ``${VAR}`` and ``${VAR:-default}``
are replaced from the environment. The top-level key ``disabled``, and host and port of a ``prometheus/development``
exporter, count as OTEL_SDK_DISABLED, OTEL_EXPORTER_PROMETHEUS_HOST and OTEL_EXPORTER_PROMETHEUS_PORT.
``docs/rollout.md`` has examples, and the precedence of exporters.
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

OTEL_PYTHON_TORCHDIST_SHARE = "OTEL_PYTHON_TORCHDIST_SHARE"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_SHARE

The share of jobs that are recorded, from 0 to 1. A hash of the job's id decides, so all ranks of a job decide alike,
on all nodes and after a restart, and a larger share includes all jobs of a smaller one. The id is the job id of Slurm,
PBS, LSF, Flux or Ray, the name of the Kubernetes Job in ``K8S_JOB_NAME``, torchrun's ``--rdzv-id``, or the address in
``MASTER_ADDR`` and ``MASTER_PORT``. A job without any of these is recorded only with a share of 1. A share in a file
does not apply to a job that a source above this file switches on: its user wants it recorded.
Default: "1"
"""

OTEL_PYTHON_TORCHDIST_CONFIG = "OTEL_PYTHON_TORCHDIST_CONFIG"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_CONFIG

The node's configuration file, an absolute path. With it, a platform team switches recording on, off, or on for a share
of jobs, without a change to the jobs: see ``docs/rollout.md``. Ranks read it when they create the first process group.
If it belongs to a user other than root and the job's user, or if others can write to it, it is not used, with one
warning. ``/dev/null`` stands for no file. This setting has no key in files.
Default: "/etc/otel_torchdist/config.yaml"
"""

OTEL_PYTHON_TORCHDIST_READER = "OTEL_PYTHON_TORCHDIST_READER"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_READER

Where tapes are read and turned into spans and metrics:

- ``agent``: in a separate process, one per job and node. A rank starts it, and it outlives all ranks.
- ``thread``: in a thread of each training process.
- ``none``: nowhere, until ``otel-torchdist agent`` is started by hand or as a service of the node.

With ``TorchDistInstrumentor().instrument()``, ``agent`` means ``thread``: providers created by a program exist only in
its process. Exporters named ``console`` imply ``thread`` too, because an agent has no console.
Default: "agent"
"""

OTEL_PYTHON_TORCHDIST_CAPTURE = "OTEL_PYTHON_TORCHDIST_CAPTURE"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_CAPTURE

The kernel that records calls:

- ``auto``: the native library if the wheel has one for this torch, or ``otel-torchdist build-native`` has built one;
  otherwise Python.
- ``native``: like ``auto``, with a warning if there is no library.
- ``python``: Python.

Both record the same data. The library takes a tenth of the time and does not need the GIL. A library that is truncated,
or that other users can write to, is not loaded, with a warning.
Default: "auto"
"""

OTEL_PYTHON_TORCHDIST_AGENT_LINGER = "OTEL_PYTHON_TORCHDIST_AGENT_LINGER"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_AGENT_LINGER

Time, in milliseconds, that an agent started by ranks keeps running after the last rank has ended: a launcher may
restart ranks that failed. If all ranks have finished, the agent exits after one more scrape of ``/metrics``.
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

Functions of yours that each rank calls around its operations, with their tensors: a comma-separated list of
``module:name``. Each is a ``Hooks``, or a function that takes an ``OperationCall`` and is called before the operation.
Hooks can set breakpoints, check values, save or change tensors. Their exceptions go to the program. With hooks, calls
are recorded in Python. A hook that cannot be imported is left out, with a warning. See ``docs/hooks.md``.
Default: ""
"""

OTEL_PYTHON_TORCHDIST_NUMERICS = "OTEL_PYTHON_TORCHDIST_NUMERICS"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_NUMERICS

Examination of the values in operations' tensors:

- ``off``: none.
- ``sampled``: for one operation in 64 (see OTEL_PYTHON_TORCHDIST_NUMERICS_EVERY), range, mean, norm, shares of zeros
  and subnormal numbers of the inputs, and checksums of outputs that must be equal on all ranks.
- ``all``: also checks that the inputs of every operation are finite, to name the rank that brings the first NaN.

Tensors on CUDA devices are examined without synchronization. With this setting, calls are recorded in Python.
Default: "off"
"""

OTEL_PYTHON_TORCHDIST_NUMERICS_EVERY = "OTEL_PYTHON_TORCHDIST_NUMERICS_EVERY"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_NUMERICS_EVERY

Sampling interval N: one in N operations is sampled, the same on all ranks. Messages above 1 MiB are sampled more
rarely, in proportion to their size. Must be the same on all ranks.
Default: "64"
"""

OTEL_PYTHON_TORCHDIST_NUMERICS_RANKS = "OTEL_PYTHON_TORCHDIST_NUMERICS_RANKS"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_NUMERICS_RANKS

The ranks that examine their tensors: ``all``, or a list of global ranks such as ``0,8-15``. The other ranks compute no
statistics and no checksums. Findings then list the ranks that are unknown, and name no rank as the first. Must be the
same on all ranks.
Default: "all"
"""

OTEL_PYTHON_TORCHDIST_COMPARE_PARAMETERS = "OTEL_PYTHON_TORCHDIST_COMPARE_PARAMETERS"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_COMPARE_PARAMETERS

Interval, in steps, at which checksums of replicated parameters are compared between ranks (models of
DistributedDataParallel, replicated DTensors), without a collective. 0 means never. Must be the same on all ranks.
Default: "0"
"""

OTEL_PYTHON_TORCHDIST_SYNCHRONIZE = "OTEL_PYTHON_TORCHDIST_SYNCHRONIZE"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_SYNCHRONIZE

For debugging only: wait for the device before and after each collective, so that its time does not include work
enqueued before. This ends the overlap of computation and communication, and so distorts the measurement. It does not
apply to sends, receives and coalesced operations, nor while a graph is captured, nor on the CPU, where times are exact.
Default: "false"
"""

OTEL_PYTHON_TORCHDIST_ABORT_HOOKS = "OTEL_PYTHON_TORCHDIST_ABORT_HOOKS"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_ABORT_HOOKS

Whether backends (``nccl`` from torch 2.15 on) report that they give up an operation, before they end the process. The
verdict then comes immediately, however short the group's timeout, and names the rank that the others waited for, not
the ranks whose backends gave up. Off by default: the hook is Python, so the backend waits for the GIL before it ends
the process, forever if native code holds it.
Default: "false"
"""

OTEL_PYTHON_TORCHDIST_IDLE_AFTER = "OTEL_PYTHON_TORCHDIST_IDLE_AFTER"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_IDLE_AFTER

Number of stall timeouts after which an idle job becomes a finding: no rank has called an operation, and none has
computed. The finding says where all ranks are. It never comes before ten times the longest time between two calls of
this job. 0 means no such findings.
Default: "6"
"""

OTEL_PYTHON_TORCHDIST_STALL_IGNORE = "OTEL_PYTHON_TORCHDIST_STALL_IGNORE"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_STALL_IGNORE

Operations that are never reported as stalled, however long they take. A comma-separated list of patterns (``*``,
``?``), which are matched against the operation's name (``barrier``), its group's description (``mesh_eval``), its
purpose (``FSDP encoder.*``, or the label of ``record_comm``), its call site (``evaluate.py:run``), and the library
function called there (``torchmetrics.*``). Deaths are still reported.
Default: ""
"""

OTEL_PYTHON_TORCHDIST_COMPARE_CALLS = "OTEL_PYTHON_TORCHDIST_COMPARE_CALLS"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_COMPARE_CALLS

Whether ranks are compared while nothing stalls. Their calls are compared, because a different dtype or reduce op can
give wrong results without an error, and their arrival times, to find the rank that comes last. Training pays nothing.
Mismatched calls that cause a stall, bad values and failed checkpoints are always reported.
Default: "true"
"""

OTEL_PYTHON_TORCHDIST_CRITICAL_PATH = "OTEL_PYTHON_TORCHDIST_CRITICAL_PATH"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_CRITICAL_PATH

Whether the agent that judges a run analyzes the critical path of its newest steps, across all nodes, every 30 s or
less often. A process of low priority does it, with at most 1 % of one core. It reports causes that make steps a tenth
longer or more. Requires an agent (not ``OTEL_PYTHON_TORCHDIST_READER=thread``).
Default: "true"
"""

OTEL_PYTHON_TORCHDIST_ANNOUNCE = "OTEL_PYTHON_TORCHDIST_ANNOUNCE"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_ANNOUNCE

Whether a stall or a crash is announced on the job's standard error, once for the whole job. The lines begin with
``otel_torchdist:`` and contain the verdict, and the command that shows more. If the job's standard error cannot be
written to from outside, a rank logs the lines, or the launcher writes them. A launcher whose ranks have failed waits up
to two seconds for the lines, or up to four while the agent is still starting.
Default: "true"
"""

OTEL_PYTHON_TORCHDIST_ON_STALL = "OTEL_PYTHON_TORCHDIST_ON_STALL"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_ON_STALL

Actions on a stall, in addition to a warning in the log. They run once per stall, after the grace period, in the order
of this comma-separated list:

- ``dump``: evidence from each node as a ``.tar.gz``.
- ``rescue:module:function``: each rank calls a function of yours, which saves its state.
- ``abort``: the ranks end with exit code 75, and with a message for torchelastic, which restarts them.
- ``callback:module:function``: a function of yours.
- ``command:…``: a command line, which takes the rest of the text.

The agents of several nodes trust each other by a secret in the job's store, which has no password. With ``abort``,
anyone who can connect to ``MASTER_PORT`` can read the secret and end ranks. Restrict that port to the job's nodes, or
set OTEL_PYTHON_TORCHDIST_EXCHANGE to ``false``.
Default: "log"
"""

OTEL_PYTHON_TORCHDIST_ON_FINDING = "OTEL_PYTHON_TORCHDIST_ON_FINDING"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_ON_FINDING

Actions on a finding without a stall (mismatched calls, stragglers, non-finite values, different results), in the form
of OTEL_PYTHON_TORCHDIST_ON_STALL without ``rescue``. They run immediately and once per finding, at most 64 times, on
the node that made the finding; ``dump`` and ``abort`` apply to the ranks of that node. Only you know whether a NaN is
fatal, so ``abort`` is never a default.
Default: "log"
"""

OTEL_PYTHON_TORCHDIST_ON_MACHINE = "OTEL_PYTHON_TORCHDIST_ON_MACHINE"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_ON_MACHINE

Actions on a machine that a verdict blames, in the form of OTEL_PYTHON_TORCHDIST_ON_FINDING. They run without a grace
period, once for each incident, in the agent that judges, if the advice is to drain the machine (an Xid, a lost GPU,
uncorrected memory errors, a link down, uninterruptible sleep) or to leave it out of the job's next start (its second
incident, see OTEL_PYTHON_TORCHDIST_MACHINE_INCIDENTS). ``deploy/actions`` has commands for Slurm, Kubernetes and
webhooks.
Default: "log"
"""

OTEL_PYTHON_TORCHDIST_MACHINE_INCIDENTS = "OTEL_PYTHON_TORCHDIST_MACHINE_INCIDENTS"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_MACHINE_INCIDENTS

A directory that outlives the job and that its nodes share, an absolute path, in which incidents of machines are
counted. It is created if missing, for this user alone. Empty: none are counted, and a machine is blamed for evidence
only.
Default: ""
"""

OTEL_PYTHON_TORCHDIST_MACHINE_INCIDENT_DAYS = "OTEL_PYTHON_TORCHDIST_MACHINE_INCIDENT_DAYS"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_MACHINE_INCIDENT_DAYS

Number of days after which an incident of a machine no longer counts.
Default: "7"
"""

OTEL_PYTHON_TORCHDIST_ON_STALL_GRACE = "OTEL_PYTHON_TORCHDIST_ON_STALL_GRACE"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_ON_STALL_GRACE

Time, in milliseconds, that a verdict must stand before the actions on a stall run.
Default: "30000"
"""

OTEL_PYTHON_TORCHDIST_RESCUE_TIMEOUT = "OTEL_PYTHON_TORCHDIST_RESCUE_TIMEOUT"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_RESCUE_TIMEOUT

Time, in milliseconds, that the function of ``rescue`` in OTEL_PYTHON_TORCHDIST_ON_STALL may take in each rank. Later
actions in the list wait for it.
Default: "60000"
"""

OTEL_PYTHON_TORCHDIST_PREEMPTION_SIGNALS = "OTEL_PYTHON_TORCHDIST_PREEMPTION_SIGNALS"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_PREEMPTION_SIGNALS

Signals by which a scheduler announces that it will end the job: a comma-separated list such as ``SIGTERM,SIGUSR1``. If
your program handles one of them, its arrival is recorded immediately, even while the handler waits for a collective to
return. A later death is then not the rank's fault. This setting takes the interpreter's only wakeup descriptor
(``signal.set_wakeup_fd``).
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

Whether the agents of a job's nodes exchange data, so that a verdict is based on all ranks. They use HTTP on a port of
their own, signed with a secret of the run. The secret is in the job's store: anyone who can connect to ``MASTER_PORT``
can read it, and forge verdicts and their actions. Without the exchange each agent judges from the ranks of its own
node.
Default: "true"
"""

OTEL_PYTHON_TORCHDIST_EXCHANGE_HOST = "OTEL_PYTHON_TORCHDIST_EXCHANGE_HOST"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_EXCHANGE_HOST

The address on which this node's agent listens for agents of other nodes. If empty: the address of the interface named
by ``GLOO_SOCKET_IFNAME`` or ``NCCL_SOCKET_IFNAME``, otherwise of the interface on the route to ``MASTER_ADDR``.
Default: ""
"""

OTEL_PYTHON_TORCHDIST_SPAN_BUDGET = "OTEL_PYTHON_TORCHDIST_SPAN_BUDGET"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_SPAN_BUDGET

The number of spans per second that one rank may export, at least 1. Beyond it, whole steps are left out. The evidence
of a stall is always exported.
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

The number of records in a rank's tape, of 128 bytes each, from 64 to 1048576. The oldest records are overwritten. The
number is reduced, with a warning, if the tapes of all live ranks would take more than an eighth of the file system.
Default: "16384"
"""

OTEL_PYTHON_TORCHDIST_OFF_FILE = "OTEL_PYTHON_TORCHDIST_OFF_FILE"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_OFF_FILE

While this file exists, nothing is recorded on this node. An absolute path. Running jobs obey within two seconds, and
record again once it is gone. The file ``off`` in the base directory of the tapes does the same for one user's jobs.
Default: "/etc/otel_torchdist/off"
"""

OTEL_PYTHON_TORCHDIST_OVERHEAD_BUDGET = "OTEL_PYTHON_TORCHDIST_OVERHEAD_BUDGET"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_OVERHEAD_BUDGET

Per cent of a step that recording may take, a number from 0 to 100. A rank over its budget for 15 s records less, by
steps: first no checks of values in tensors, then no intervals of optimizers, data waits and backward passes, then no
lines that call operations. Operations are still all recorded. 0 means no limit.
Default: "1"
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

Whether the agent reads symptoms of its machine every 5 s, as evidence beside a verdict: pressure on memory and storage
(PSI), lost InfiniBand links, and GPUs if ``nvidia-ml-py`` is installed (``pip install nvidia-ml-py``).
``torchdist_rank_info`` then has the node and the GPU of each rank. Requires an agent (not
``OTEL_PYTHON_TORCHDIST_READER=thread``).
Default: "true"
"""

OTEL_PYTHON_TORCHDIST_DESCRIBE_LAUNCH = "OTEL_PYTHON_TORCHDIST_DESCRIBE_LAUNCH"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_DESCRIBE_LAUNCH

Whether the command line of a rank and the git commit of its program become resource attributes. Values that look like
secrets are replaced by ``***``: by the names of their options (token, password, key, secret) and by their first
characters. No such rule finds every secret.
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

The directory into which whole runs are archived, an absolute path on a disk or a shared file system. Several nodes and
jobs can share it. The reader of the tapes writes every operation there, about 12 bytes each. If empty: no archive.
Default: ""
"""

OTEL_PYTHON_TORCHDIST_ARCHIVE_BYTES = "OTEL_PYTHON_TORCHDIST_ARCHIVE_BYTES"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_ARCHIVE_BYTES

The number of bytes that the archive of one run may take on each node, at least 1048576. Beyond it the oldest segments
are removed. Archives of ended runs are never removed.
Default: "1073741824" (1 GiB)
"""

OTEL_PYTHON_TORCHDIST_BUNDLES = "OTEL_PYTHON_TORCHDIST_BUNDLES"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_BUNDLES

The directory into which the agent writes a bundle of evidence on each stall, on each crash and at the end of a run, an
absolute path on storage that outlives the job. ``otel-torchdist diagnose`` reads such a file on any machine, long after
the job is gone. Several nodes and jobs can share the directory. If empty: no bundles.
Default: ""
"""

OTEL_PYTHON_TORCHDIST_BUNDLE_BYTES = "OTEL_PYTHON_TORCHDIST_BUNDLE_BYTES"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_BUNDLE_BYTES

The number of bytes that this user's bundles may take in that directory, of all jobs and nodes, at least 1048576. The
oldest are removed to make room. A bundle takes at most half of it, and holds only the newest records of each tape if
all do not fit.
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

Visitors of the live page, which is served at ``/`` on the port of ``/metrics``:

- ``loopback``: users of this machine, on its loopback addresses. Each user sees their own jobs, root sees all.
- ``on``: everyone who reaches that port, on the address set by OTEL_EXPORTER_PROMETHEUS_HOST. The page shows stacks,
  file names and host names.
- ``off``: nobody; there is no page.

``/metrics`` is the same in all three cases.
Default: "loopback"
"""

OTEL_PYTHON_TORCHDIST_TRACE_URL = "OTEL_PYTHON_TORCHDIST_TRACE_URL"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_TRACE_URL

The address of a trace in your tracing tool, for links on the live page. ``{trace_id}`` is replaced by the id:
``http://localhost:16686/trace/{trace_id}`` for a Jaeger on this machine. Without it the page shows the id only.
Default: ""
"""

OTEL_PYTHON_TORCHDIST_DOCS_URL = "OTEL_PYTHON_TORCHDIST_DOCS_URL"
"""
.. envvar:: OTEL_PYTHON_TORCHDIST_DOCS_URL

The address of the pages on verdicts and findings, for links on the live page and in the log: ``/verdicts/absent`` and
the like follow it. Without it the live page links to the pages that its agent serves at ``/docs``, and the log has no
links. Alerts take it from Prometheus's external label ``torchdist_docs_url`` instead.
Default: ""
"""

OTEL_CONFIG_FILE = "OTEL_CONFIG_FILE"
"""
.. envvar:: OTEL_CONFIG_FILE

OpenTelemetry's own: the path of a declarative configuration. It decides alone where spans, metrics and events go:
``OTEL_TRACES_EXPORTER``, ``OTEL_EXPORTER_OTLP_ENDPOINT`` and the like are ignored, as the specification requires. This
needs the extra ``config`` (``pip install opentelemetry-configuration``). If the file cannot be used, one warning says
why, and the variables decide.
Default: none
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
