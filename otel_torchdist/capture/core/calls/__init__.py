"""Calls, and how calls like them are recorded."""
