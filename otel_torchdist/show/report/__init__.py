"""The report on a run: one document, and one page for browsers that shows it. Pure."""
