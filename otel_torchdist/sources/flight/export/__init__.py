"""Exports recorded calls of any backend as flight recorder dumps."""
