"""The tape: a ring buffer of fixed-size records with one writer, a rank, and any number of readers.

Imports neither torch nor OpenTelemetry: readers must start fast, and the writer runs inside the training process.
"""
