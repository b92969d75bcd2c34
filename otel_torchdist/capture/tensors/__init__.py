"""Observers of tensors."""
