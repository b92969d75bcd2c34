"""The tape: a ring of fixed-size records that one rank writes and any number of readers read.

Imports neither torch nor OpenTelemetry: a reader must start fast, and the writer sits in somebody's training.
"""
