"""Verdicts and their evidence in plain English."""
