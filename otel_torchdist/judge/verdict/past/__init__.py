"""Runs that are over, judged afterwards as if somebody had been watching."""
