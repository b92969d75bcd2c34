"""The tape: a ring of fixed-size records that one rank writes and any number of readers read.

Imports neither torch nor OpenTelemetry: readers must start fast, and the writer runs inside the training process.
"""
