"""`otel-torchdist` with segments of a few operations, so that a short run has many."""

import otel_torchdist.sources.archive.tapes as recorder
from otel_torchdist.cli import main

recorder.MAX_SEGMENT_OPERATIONS = 40
main()
