"""Readers of text formats, one module for each tool. A reader turns lines of its format into statements."""
